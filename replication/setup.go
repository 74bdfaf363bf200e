package replication

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// SetupOptions say what of the setup is wanted. The zero value wants nothing.
type SetupOptions struct {
	Role        string // the role that walpost runs as
	CreateRole  bool   // make it
	AlterRole   bool   // it is there, and lacks the right to replicate or to log in
	Monitor     bool   // it is there, and does not see the sessions of other roles
	Provider    fix.Provider
	Schemas     []string
	Tables      []pgname.Table // make these
	Grants      []pgname.Table // let Role read these
	Cleans      []pgname.Table // let Role remove old rows of these, as Config.Outbox says
	Publication bool
	Adds        []pgname.Table // add these to the publication, which is there
	Inserts     bool           // the publication must not have updates, because a table has no replica identity
	Slot        bool
	SlotByRun   bool // the slot is missing, and the first run makes it

	// Unmet is what a setup cannot mend. If it concerns the tables, the publication or the slot, then
	// neither Publication nor Slot is wanted.
	Unmet []condition.Finding
}

// FullSetup wants everything, as for an empty database: what SetupSQL shows where there is no connection to ask.
func FullSetup(cfg Config) SetupOptions {
	opts := SetupOptions{Role: "walpost"}
	if cc, err := cfg.Connection().Config(); err == nil && cc.User != "" {
		opts.Role = cc.User
	}
	opts.Role = cmp.Or(cfg.Outbox.Role, opts.Role)
	opts.CreateRole = opts.Role != "postgres" // a server has this role from the beginning
	for _, t := range cfg.tables() {
		opts.Tables = append(opts.Tables, t)
		if t.Schema != "public" && !slices.Contains(opts.Schemas, t.Schema) {
			opts.Schemas = append(opts.Schemas, t.Schema)
		}
	}
	if opts.CreateRole {
		opts.Grants = opts.Tables
	}
	if cfg.Outbox.Cleans() {
		opts.Cleans = opts.Tables
	}
	opts.stream(&cfg, cfg.misfits(opts.Tables), true, true)
	return opts
}

// stream decides on the publication and the slot. unfit is what is wrong with them or with the tables.
func (o *SetupOptions) stream(cfg *Config, unfit []condition.Finding, noPublication, noSlot bool) {
	if noSlot && cfg.Outbox.Slot && cfg.Copies() {
		unfit = append(unfit, condition.Finding{
			Name: condition.Slot, Why: "with source.snapshot: " + cfg.Snapshot + ", the first run creates the slot together with its snapshot", Fix: fix.ByWords("Leave out --make-slot."), Need: condition.Misconfigured,
		})
	}
	o.Unmet = append(o.Unmet, unfit...)
	o.Publication = noPublication && len(unfit) == 0
	o.Slot = noSlot && cfg.Outbox.Slot && len(unfit) == 0
	o.SlotByRun = noSlot && !cfg.Outbox.Slot && len(unfit) == 0
}

// Empty says that nothing is missing but a slot that the first run makes.
func (o *SetupOptions) Empty() bool {
	return !o.CreateRole && !o.AlterRole && !o.Monitor && len(o.Schemas) == 0 && len(o.Tables) == 0 && len(o.Grants) == 0 && len(o.Cleans) == 0 &&
		!o.Publication && !o.Slot && len(o.Unmet) == 0
}

// Err is the first thing that a setup cannot mend, or nil.
func (o *SetupOptions) Err() error {
	if len(o.Unmet) == 0 {
		return nil
	}
	first := o.Unmet[0]
	first.Provider = o.Provider
	return first.Fault(false)
}

// A statement is one step of a setup.
type statement struct {
	what    string // in a few words, for a log
	comment string // why, for a reader; lines without "-- "
	sql     string
	apart   bool // cannot run in a transaction with others
}

// SetupSQL is the SQL that makes what opts want, with comments, in the order in which it must run. It ends with the slot,
// which must be made in a transaction of its own after the publication is committed.
func SetupSQL(cfg Config, opts SetupOptions) string { return text(statements(&cfg, opts)) }

func text(all []statement) string {
	var b strings.Builder
	for i, s := range all {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(outboxtable.Comment(s.comment) + s.sql + "\n")
	}
	return b.String()
}

func statements(cfg *Config, opts SetupOptions) []statement {
	var all []statement
	add := func(what, comment, sql string) { all = append(all, statement{what: what, comment: comment, sql: sql}) }
	role := pgname.QuoteIdent(opts.Role)
	for _, s := range opts.Schemas {
		add("schema "+s, "The schema of the table.", "CREATE SCHEMA "+pgname.QuoteIdent(s)+";")
	}
	for _, t := range opts.Tables {
		for i, step := range cfg.table(t).Steps() {
			if i == 0 && cfg.OrderColumn == "" {
				step.What += " (set source.order_column: " + outboxtable.DefaultOrderColumn + ")"
				step.Comment += "\nSet source.order_column: " + outboxtable.DefaultOrderColumn + " in walpost.yaml. Then a snapshot and recover publish rows in the order of this column."
			}
			add(step.What, step.Comment, step.SQL)
		}
	}
	right, member := " REPLICATION", ""
	amazon := opts.Provider == fix.RDS || opts.Provider == fix.Aurora
	if amazon {
		right, member = "", "\nGRANT rds_replication TO "+role+";"
	}
	const reads = "\nA role with this attribute reads all published tables, even without the privilege SELECT."
	switch {
	case opts.AlterRole:
		add("the REPLICATION attribute of role "+opts.Role, "The attribute that is needed to read the WAL."+reads, "ALTER ROLE "+role+" LOGIN"+right+";"+member)
	case opts.CreateRole:
		comment := `The role of walpost. Give it a password if pg_hba.conf asks for one (\password in psql).` + reads
		if !amazon {
			comment += "\nOn Amazon RDS and Aurora, leave REPLICATION out, and add: GRANT rds_replication TO " + role + ";"
		}
		add("role "+opts.Role+" without a password", comment, "CREATE ROLE "+role+" LOGIN"+right+";"+member)
	}
	if opts.CreateRole || opts.Monitor {
		add("membership of role "+opts.Role+" in pg_monitor", "With this membership, walpost can show which transactions of other roles retain WAL.", "GRANT pg_monitor TO "+role+";")
	}
	for _, t := range opts.Grants {
		add("the privilege to read "+t.String(), "walpost reads the table to find rows from before the slot, for a snapshot, and for recover.",
			pg.ReadingRights(t, opts.Role))
	}
	for _, t := range opts.Cleans {
		all = append(all, cleans(t, &cfg.Outbox, role, opts.Role, slices.Contains(opts.Tables, t))...)
	}
	if opts.Publication {
		what := "inserts only. "
		if opts.Inserts && cfg.updates() {
			inserts := *cfg
			inserts.Publish, cfg = []string{"insert"}, &inserts
			what = "inserts only, because a table has no primary key:\nif updates were published, the application's UPDATE of the table would fail.\n"
		}
		if cfg.updates() {
			what = "inserts, and updates because an update can change a primary key. "
		}
		if len(cfg.tables()) == 0 {
			what = "logical messages. They are in every publication, even in an empty publication.\n"
		}
		add("publication "+cfg.Publication, `What walpost reads: `+what+`Create it before the slot: a slot cannot read a publication that was created later.`,
			publicationSQL(cfg))
	}
	for _, t := range opts.Adds {
		add("table "+t.String()+" in publication "+cfg.Publication, "The publication exists, but does not contain the new table.",
			fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s;", pgname.QuoteIdent(cfg.Publication), t.SQL()))
	}
	if opts.Slot {
		add("slot "+cfg.Slot, `The slot holds all WAL that walpost has not read. Create it only when walpost is about to run. If you
stop using walpost, drop the slot: SELECT pg_drop_replication_slot(`+pgname.QuoteLiteral(cfg.Slot)+`);
Rows from before the slot are not published.`, slotSQL(cfg, cfg.Failover))
		all[len(all)-1].apart = true
	}
	return all
}

// Missing looks at what of the setup is not there yet, and what it cannot mend. It uses the connected role, and Config.Outbox.Role
// for what that role lacks.
func (s *Source) Missing(ctx context.Context) (opts SetupOptions, err error) {
	err = s.beside(ctx, func(sql *pgconn.PgConn) error {
		opts, _, err = s.missing(ctx, sql)
		return err
	})
	return opts, err
}

func (s *Source) missing(ctx context.Context, sql *pgconn.PgConn) (opts SetupOptions, f *pg.Facts, err error) {
	if f, err = s.cfg.Names().Describe(ctx, sql); err != nil {
		return opts, nil, err
	}
	opts.Role = cmp.Or(s.cfg.Outbox.Role, f.Server.Role)
	opts.Provider, opts.Inserts = f.Server.Provider, s.cfg.publishable(f) != &s.cfg
	its := f // as opts.Role sees the server; nil if there is no such role
	if opts.Role != f.Server.Role {
		if its, err = s.become(ctx, sql, f.Server.Role, &opts); err != nil {
			return opts, nil, err
		}
	}
	if its != nil {
		opts.AlterRole = opts.AlterRole || !its.Server.Super && !its.Server.Replication && !its.Server.Managed
		sees, err := pg.Row[struct{ All bool }](ctx, sql, "look at what role "+opts.Role+" sees", "SELECT pg_has_role('pg_read_all_stats', 'USAGE') AS all")
		if err != nil {
			return opts, nil, err
		}
		opts.Monitor = !sees.All
		if opts.Cleans, err = s.cfg.uncleaned(ctx, sql, opts.Role); err != nil {
			return opts, nil, err
		}
	} else if s.cfg.Outbox.Cleans() {
		opts.Cleans = s.cfg.tables()
	}
	if _, err := sql.Exec(ctx, "RESET ROLE").ReadAll(); err != nil {
		return opts, nil, err
	}
	for i := range f.Tables {
		t := &f.Tables[i]
		switch {
		case t.Exists():
		case len(t.Similar) > 0:
			continue // the name is wrong
		default:
			opts.Tables = append(opts.Tables, t.Table)
			if t.NoSchema && !slices.Contains(opts.Schemas, t.Table.Schema) {
				opts.Schemas = append(opts.Schemas, t.Table.Schema)
			}
		}
		if its == nil || !its.Tables[i].Readable && !its.Server.Super {
			opts.Grants = append(opts.Grants, t.Table)
		}
	}
	unfit := s.cfg.misfits(opts.Tables)
	// Rights are no part of it: a setup gives them, or fails at them.
	able := *f
	able.Server.Super = true
	j := s.cfg.judge(&able, f.Slot == nil)
	j.server()
	for _, bad := range condition.Unmet(j.Found) {
		opts.Unmet = append(opts.Unmet, *bad)
	}
	for _, bad := range condition.Unmet(s.cfg.Conditions(&able, f.Slot == nil))[len(opts.Unmet):] {
		if !slices.ContainsFunc(opts.Tables, func(t pgname.Table) bool { return bad.Name == condition.TableName(t) }) {
			unfit = append(unfit, *bad)
		}
	}
	if p := f.Publication; p != nil && !p.ViaRoot && s.cfg.Outbox.Partitioned && len(opts.Tables) > 0 {
		unfit = append(unfit, condition.Finding{Name: "publication", Why: fmt.Sprintf("publication %s exists, and would publish the partitions of %s under their own names", s.cfg.Publication, opts.Tables[0]), Fix: fix.Fix{
			fix.Words("Set source.publication to another name. Or, if nothing else reads this publication:"),
			fix.SQL("ALTER PUBLICATION " + pgname.QuoteIdent(s.cfg.Publication) + " SET (publish_via_partition_root = true);"),
		}})
	}
	if p := f.Publication; p != nil && !p.AllTables && len(p.Tables) > 0 && len(opts.Tables) > 0 && !slices.ContainsFunc(p.Tables, j.configured) {
		unfit = append(unfit, condition.Finding{Name: "publication", Why: fmt.Sprintf("publication %s exists, and has other tables than %s", s.cfg.Publication, opts.Tables[0]), Fix: fix.ByWords(ownNames +
			" If this relay is to use this publication, create the table and add it to the publication yourself.")})
	}
	opts.stream(&s.cfg, unfit, f.Publication == nil, f.Slot == nil)
	if p := f.Publication; p != nil && !p.AllTables && len(opts.Unmet) == 0 {
		opts.Adds = opts.Tables
	}
	return opts, f, nil
}

// become looks at the server as opts.Role sees it, and stays this role; nil if there is no such role. from is the connected role.
func (s *Source) become(ctx context.Context, sql *pgconn.PgConn, from string, opts *SetupOptions) (*pg.Facts, error) {
	found, err := pg.Rows[struct{ Login bool }](ctx, sql, "look for role "+opts.Role, "SELECT rolcanlogin AS login FROM pg_roles WHERE rolname = "+pgname.QuoteLiteral(opts.Role))
	if opts.CreateRole = len(found) == 0; opts.CreateRole || err != nil {
		return nil, err
	}
	opts.AlterRole = !found[0].Login
	if _, err := sql.Exec(ctx, "SET ROLE "+pgname.QuoteIdent(opts.Role)).ReadAll(); err != nil {
		return nil, fault.WithHint(pg.Classify(fmt.Errorf("look at the privileges of role %s: %w", opts.Role, err)), "Connect as a superuser, or as a member of this role: GRANT "+pgname.QuoteIdent(opts.Role)+" TO "+pgname.QuoteIdent(from)+";")
	}
	return s.cfg.Names().Describe(ctx, sql)
}

// misfits are those tables that a setup would make, and that would not have what the router needs.
func (c *Config) misfits(tables []pgname.Table) (unfit []condition.Finding) {
	for _, t := range tables {
		if c.Needs == nil {
			break
		}
		if _, err := c.Needs(outboxRelation(t, c)); err != nil {
			unfit = append(unfit, condition.Finding{
				Name: condition.TableName(t), Why: fmt.Sprintf("table %s does not exist, and the table that setup creates does not fit the configuration: %s", t, err),
				Fix: fix.ByWords("Create the table yourself, or leave out the router options that name columns that setup does not create."), Need: condition.Misconfigured,
			})
		}
	}
	return unfit
}

// Apply makes everything that is missing, or nothing: tables, publication, the role and its rights. The slot is made last, if Config.Outbox.Slot
// wants it. It returns what it made. What it cannot mend is an error before anything is made, as is a slot over a table that
// has rows until Config.Snapshot is set.
func (s *Source) Apply(ctx context.Context) (made []string, err error) {
	sql, err := s.cfg.Connection().ConnectSQL(ctx)
	if err != nil {
		return nil, err
	}
	defer pg.Close(sql)
	opts, f, err := s.missing(ctx, sql)
	if err != nil {
		return nil, err
	}
	if err := opts.Err(); err != nil {
		return nil, err
	}
	if opts.Slot && s.cfg.Snapshot == "" {
		has, err := countAll(ctx, sql, f)
		if err != nil {
			return nil, err
		}
		if has != "" {
			return nil, fault.Config(fmt.Errorf("source.snapshot must say what happens to the rows from before the slot: %s", has),
				"Leave out --make-slot, and set source.snapshot to initial: the first run then creates the slot, and publishes these rows. To leave them out, set source.snapshot to never.")
		}
	}
	if opts.Role == f.Server.Role {
		opts.Grants, opts.Cleans = nil, nil // a role cannot give itself a right, and has all rights on its own tables
	}
	if opts.Monitor { // walpost does without it, so no setup fails because of it
		may, err := pg.Row[struct{ Grant bool }](ctx, sql, "look at pg_monitor", "SELECT pg_has_role('pg_monitor', 'USAGE WITH ADMIN OPTION') AS grant")
		if err != nil {
			return nil, err
		}
		opts.Monitor = may.Grant
	}
	run := func(sqls string) error {
		_, err := sql.Exec(ctx, sqls).ReadAll()
		return err
	}
	if err := run("BEGIN"); err != nil {
		return nil, pg.Classify(err)
	}
	for _, step := range statements(&s.cfg, opts) {
		if step.apart {
			continue
		}
		if err := run(step.sql); err != nil {
			err = fmt.Errorf("set up %s: %w; nothing was changed", step.what, err)
			if pg.SQLState(err) == pg.StateNoRight {
				hint := pg.SetupHint(opts.Role)
				if s.cfg.Outbox.Role != "" {
					hint = "Role " + f.Server.Role + " may not do this. Ask a superuser to run the SQL that setup prints without --apply."
				}
				return nil, fault.WithHint(err, "The statement was: "+step.sql+"\n"+hint)
			}
			return nil, pg.Classify(err)
		}
		made = append(made, step.what)
	}
	if err := run("COMMIT"); err != nil {
		return nil, pg.Classify(fmt.Errorf("commit the setup: %w", err))
	}
	if !opts.Slot {
		return made, nil
	}
	conn, err := s.cfg.Connection().ConnectReplication(ctx)
	if err != nil {
		return made, err
	}
	defer pg.Close(conn)
	slot, err := s.makeSlot(ctx, conn, sql, f, false)
	if slot.created {
		made = append(made, "slot "+s.cfg.Slot)
	}
	return made, err
}
