package replication

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
)

// SetupOptions say what of the setup is wanted. The zero value wants nothing.
type SetupOptions struct {
	Role        string // the role that walpost runs as
	CreateRole  bool   // make it
	AlterRole   bool   // it is there and lacks the right to replicate
	Schemas     []string
	Tables      []Table // make these
	Grants      []Table // let Role read these
	Cleans      []Table // let Role remove old rows of these, as Config.Outbox says
	Publication bool
	Slot        bool
}

// FullSetup wants everything, as for an empty database: what SetupSQL shows where there is no connection to ask.
func FullSetup(cfg Config) SetupOptions {
	role := "walpost"
	if cc, err := cfg.Connection().Config(); err == nil && cc.User != "" {
		role = cc.User
	}
	var schemas []string
	for _, t := range cfg.tables() {
		if t.Schema != "public" && !slices.Contains(schemas, t.Schema) {
			schemas = append(schemas, t.Schema)
		}
	}
	opts := SetupOptions{Schemas: schemas, Role: role, CreateRole: true, Tables: cfg.tables(), Grants: cfg.tables(), Publication: true, Slot: cfg.Snapshot != "initial"}
	if cfg.Outbox.Cleans() {
		opts.Cleans = cfg.tables()
	}
	return opts
}

// Empty says that nothing is missing.
func (o *SetupOptions) Empty() bool {
	return !o.CreateRole && !o.AlterRole && len(o.Schemas) == 0 && len(o.Tables) == 0 && len(o.Grants) == 0 && len(o.Cleans) == 0 && !o.Publication && !o.Slot
}

// A statement is one step of a setup.
type statement struct {
	what    string // in a few words, for a log
	comment string // why, for a reader; lines without "-- "
	sql     string
}

// SetupSQL is the SQL that makes what opts want, with comments, in the order in which it must run. It ends with the slot,
// which must be made in a transaction of its own after the publication is committed.
func SetupSQL(cfg Config, opts SetupOptions) string {
	var b strings.Builder
	for i, s := range statements(&cfg, opts) {
		if i > 0 {
			b.WriteByte('\n')
		}
		for line := range strings.SplitSeq(s.comment, "\n") {
			b.WriteString("-- " + line + "\n")
		}
		b.WriteString(s.sql + "\n")
	}
	return b.String()
}

func statements(cfg *Config, opts SetupOptions) []statement {
	var all []statement
	add := func(what, comment, sql string) { all = append(all, statement{what, comment, sql}) }
	role := pg.QuoteIdent(opts.Role)
	for _, s := range opts.Schemas {
		add("schema "+s, "Where the table lives.", "CREATE SCHEMA "+pg.QuoteIdent(s)+";")
	}
	for _, t := range opts.Tables {
		add("table "+t.String(), `The outbox. The application inserts one row for each event, in the transaction that changes the data.
Old rows may be deleted at any time after they are published: deletes are not published.`, outboxSQL(t, &cfg.Outbox))
		if cfg.Outbox.Partitioned {
			add("partitions of "+t.String(), "One for each day. walpost makes the next ones and drops the old ones with cleanup.mode drop_partitions.", partitionsSQL(t))
		}
	}
	switch {
	case opts.AlterRole:
		add("the right of role "+opts.Role, `The right to read the WAL (on Amazon RDS and Aurora instead: GRANT rds_replication TO `+role+`;).
It reads every table that a publication has, without the right to select from it: keep its password as you keep the data.`,
			"ALTER ROLE "+role+" LOGIN REPLICATION;")
	case opts.CreateRole:
		add("role "+opts.Role, `The role of walpost; give it a password: \password `+opts.Role+`
It reads every table that a publication has, without the right to select from it: keep its password as you keep the data.
(On Amazon RDS and Aurora: without REPLICATION, and GRANT rds_replication TO `+role+`;)
With GRANT pg_monitor TO `+role+`; it can also name the transactions of others that hold WAL.`,
			"CREATE ROLE "+role+" WITH LOGIN REPLICATION;")
	}
	for _, t := range opts.Grants {
		add("the right to read "+t.String(), "walpost reads the table to find rows from before the slot, for a snapshot, and for recover.",
			fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;\nGRANT SELECT ON %s TO %s;", pg.QuoteIdent(t.Schema), role, t.SQL(), role))
	}
	for _, t := range opts.Cleans {
		cleans(add, t, &cfg.Outbox, opts.Role)
	}
	if opts.Publication {
		what := "inserts only"
		if cfg.Updates() {
			what = "inserts, and updates for those that change a primary key"
		}
		add("publication "+cfg.Publication, `What is read: `+what+`. It must be made before the slot: a slot that is older than its publication cannot read it.`,
			PublicationSQL(cfg))
	}
	if opts.Slot {
		add("slot "+cfg.Slot, `The slot remembers what was read, and holds the WAL of what was not: make it when walpost is about to run, and drop it when
walpost is not wanted any more (SELECT pg_drop_replication_slot(`+pg.QuoteLiteral(cfg.Slot)+`);). Rows from before it are not published.`,
			slotSQL(cfg))
	}
	return all
}

// Missing looks at what of the setup is not there yet. What is there and wrong is for Examine to say.
func (s *Source) Missing(ctx context.Context) (SetupOptions, error) {
	var opts SetupOptions
	err := s.beside(ctx, func(sql *pgconn.PgConn) error {
		f, err := s.cfg.Names().Describe(ctx, sql)
		if err != nil {
			return err
		}
		opts = s.cfg.missing(f)
		opts.Cleans, err = s.cfg.uncleaned(ctx, sql)
		return err
	})
	return opts, err
}

func (c *Config) missing(f *pg.Facts) SetupOptions {
	server := &f.Server
	opts := SetupOptions{
		Role: server.Role, AlterRole: !server.Super && !server.Replication && !server.Managed,
		Publication: f.Publication == nil, Slot: f.Slot == nil && c.Snapshot != "initial",
	}
	for i := range f.Tables {
		switch t := &f.Tables[i]; {
		case !t.Exists():
			opts.Tables = append(opts.Tables, t.Table)
			if t.NoSchema && !slices.Contains(opts.Schemas, t.Table.Schema) {
				opts.Schemas = append(opts.Schemas, t.Table.Schema)
			}
		case !t.Readable:
			opts.Grants = append(opts.Grants, t.Table)
		}
	}
	return opts
}

// Apply makes what is missing: tables, publication, slot, and the role's rights as far as the connected role may grant
// them. It returns what it made, also where it ends with an error. A slot is refused over a table that has rows until
// Config.Snapshot is set, and beside a slot that is there a missing publication is not made: it would not help.
func (s *Source) Apply(ctx context.Context) (made []string, err error) {
	sql, err := s.cfg.Connection().ConnectSQL(ctx)
	if err != nil {
		return nil, err
	}
	defer pg.Close(sql)
	f, err := s.cfg.Names().Describe(ctx, sql)
	if err != nil {
		return nil, err
	}
	opts := s.cfg.missing(f)
	opts.Grants = nil // not needed for the stream, and only the table's owner can give them
	j := &judgement{cfg: &s.cfg, f: f, makes: opts.Slot}
	switch {
	case j.known() && f.Publication == nil:
		j.noPublication(false)
	case opts.Publication && j.unidentified():
	case opts.Slot:
		if s.cfg.Snapshot == "" {
			if err := s.cfg.RefuseRows(ctx, sql, f); err != nil {
				return nil, err
			}
		}
		j.slot()
	}
	if len(j.unmet) > 0 {
		return nil, j.unmet[0].fault(false, f.Server.Provider)
	}
	for _, step := range statements(&s.cfg, opts) {
		if opts.Slot && step.sql == slotSQL(&s.cfg) {
			break // by the command, which is bounded and says whom it waits for
		}
		if _, err := sql.Exec(ctx, step.sql).ReadAll(); err != nil {
			if pg.SQLState(err) == pg.StateNoRight {
				return made, fault.WithHint(fmt.Errorf("make %s: %w", step.what, err), "Run as a role that may: "+step.sql)
			}
			return made, pg.Classify(fmt.Errorf("make %s: %w", step.what, err))
		}
		made = append(made, step.what)
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
