package pg

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
)

// Names are what to describe: names in the catalog.
type Names struct {
	Slot, Publication string
	Tables            []pgname.Table
}

// Facts are what the catalog of a server says about everything a stream rests on. Reading them judges nothing.
type Facts struct {
	Server      Server
	Slot        *Slot // nil: there is none of that name
	Publication *Publication
	Tables      []TableFacts // one for each of Names.Tables, in order
	Publishing  Publishing
	// Streams says that a connection in replication mode was accepted, which proves the right to it.
	Streams bool
}

type Server struct {
	Version       int
	Recovery      bool
	LSN           cdc.LSN
	Now           time.Time // by the server's clock
	Started       string    // when the postmaster started: it tells two servers, or two lives of one, apart
	SystemID      string    `json:"system_id"`
	Timeline      uint32    // 0 on a standby
	Database      string
	DatabaseOID   uint32 `json:"database_oid"`
	WALLevel      string `json:"wal_level"`
	SenderTimeout string `json:"sender_timeout"` // milliseconds
	MaxSlots      int    `json:"max_slots"`
	Slots         int
	MaxSenders    int   `json:"max_senders"`
	Senders       int   // streams that are open now
	KeepMB        int64 `json:"keep_mb"` // max_slot_wal_keep_size; -1 is no limit
	SyncStandbys  string
	Role          string
	Super         bool
	Replication   bool
	Managed       bool // member of a role that gives the right on a managed service
	CanCreate     bool `json:"can_create"`
	Provider      fix.Provider
}

const serverQuery = `SELECT current_setting('server_version_num')::int AS version, pg_is_in_recovery() AS recovery,
 CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END AS lsn,
 clock_timestamp() AS now, pg_postmaster_start_time()::text AS started, (SELECT system_identifier::text FROM pg_control_system()) AS system_id,
 CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END AS timeline,
 current_database() AS database, (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database_oid, current_setting('wal_level') AS wal_level,
 (SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout') AS sender_timeout,
 current_setting('max_replication_slots')::int AS max_slots, (SELECT count(*) FROM pg_replication_slots) AS slots,
 current_setting('max_wal_senders')::int AS max_senders, (SELECT count(*) FROM pg_stat_replication) AS senders,
 (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep_mb,
 current_setting('synchronous_standby_names') AS syncstandbys,
 r.rolname AS role, r.rolsuper AS super, r.rolreplication AS replication,
 EXISTS (SELECT FROM pg_roles m WHERE m.rolname IN ('rds_replication', 'rds_superuser', 'rdsadmin') AND pg_has_role(r.oid, m.oid, 'MEMBER')) AS managed,
 has_database_privilege(current_database(), 'CREATE') AS can_create,
 (SELECT min(CASE WHEN s.name LIKE 'rds.%' AND EXISTS (SELECT FROM pg_proc WHERE proname = 'aurora_version') THEN '` + string(fix.Aurora) + `'
   WHEN s.name LIKE 'rds.%' THEN '` + string(fix.RDS) + `' WHEN s.name LIKE 'cloudsql.%' THEN '` + string(fix.CloudSQL) + `' ELSE '` + string(fix.Azure) + `' END)
  FROM pg_settings s WHERE s.name ~ '^(rds|cloudsql|azure)\.') AS provider
 FROM pg_roles r WHERE r.rolname = current_user`

// A Slot is a row of pg_replication_slots; what a version does not have stays zero.
type Slot struct {
	Plugin       string
	Type         string `json:"slot_type"`
	Database     string
	Temporary    bool
	Active       bool
	ActivePID    int32   `json:"active_pid"`
	Client       string  // address of the process that has it
	Restart      cdc.LSN `json:"restart_lsn"`
	Confirmed    cdc.LSN `json:"confirmed_flush_lsn"`
	WALStatus    string  `json:"wal_status"`
	TwoPhase     bool    `json:"two_phase"`
	Conflicting  bool
	Invalidation string `json:"invalidation_reason"`
	Failover     bool
	Synced       bool
}

func slotQuery(name string) string {
	return `SELECT s.*, host(a.client_addr) AS client FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
 WHERE slot_name = ` + pgname.QuoteLiteral(name)
}

// Lost is the reason why the server has invalidated the slot, or "".
func (s *Slot) Lost() string {
	switch {
	case s.Invalidation != "": // 17 and newer
		return s.Invalidation
	case s.WALStatus == "lost", s.Conflicting:
		return "lost"
	}
	return ""
}

func (s *Slot) State() cdc.SlotState {
	if s == nil {
		return cdc.SlotState{}
	}
	return cdc.SlotState{
		Exists: true, Confirmed: s.Confirmed.Position(), Restart: s.Restart,
		Active: s.Active, ActivePID: s.ActivePID, Client: s.Client, WALStatus: s.WALStatus, Invalidation: s.Lost(),
	}
}

type Publication struct {
	AllTables bool `json:"puballtables"`
	Insert    bool `json:"pubinsert"`
	Update    bool `json:"pubupdate"`
	Delete    bool `json:"pubdelete"`
	Truncate  bool `json:"pubtruncate"`
	ViaRoot   bool `json:"pubviaroot"`

	Tables []PublishedTable `json:"-"`
}

// A PublishedTable is a row of pg_publication_tables. Before 15 there are no column lists and no filters.
type PublishedTable struct {
	Schema  string   `json:"schemaname"`
	Name    string   `json:"tablename"`
	Columns []string `json:"attnames"`
	Filter  string   `json:"rowfilter"`
}

func (p *Publication) Table(t pgname.Table) *PublishedTable {
	i := slices.IndexFunc(p.Tables, func(p PublishedTable) bool { return p.Schema == t.Schema && p.Name == t.Name })
	if i < 0 {
		return nil
	}
	return &p.Tables[i]
}

// Filter is the row filter of a table, which the server applies to what it publishes; "" for none.
func (p *Publication) Filter(t pgname.Table) string {
	if p != nil {
		if published := p.Table(t); published != nil {
			return published.Filter
		}
	}
	return ""
}

func publicationQuery(name string) string {
	return "SELECT * FROM pg_publication WHERE pubname = " + pgname.QuoteLiteral(name)
}

func publishedQuery(name string) string {
	return "SELECT * FROM pg_publication_tables WHERE pubname = " + pgname.QuoteLiteral(name) + " ORDER BY schemaname, tablename"
}

// TableFacts describe a table: what the catalog says of it. Everything that reads or writes rows of an outbox table goes by them.
type TableFacts struct {
	pgname.Table `json:"-"`
	OID          uint32 `json:",string"`
	Kind         string // r table, p partitioned, v view, m materialized view, f foreign
	Persistence  string // p permanent, u unlogged, t temporary
	Identity     string // replica identity: d, n, f, i
	HasKey       bool   `json:"has_key"`
	Owner        string
	Owned        bool // by a role that we are
	Readable     bool
	Secured      bool     // row-level security hides rows from us
	Similar      []string // where the table does not exist: names that differ in case only
	NoSchema     bool     `json:"no_schema"`
	Root         string   // of a partition: its topmost table
	RangeColumn  string   `json:"range_column"` // of a table that is partitioned by range of one column
	Partitions   []Partition
	Indexes      []Index

	Relation *cdc.Relation // nil where the table does not exist
}

// A Partition is a relation below a partitioned table, at any level.
type Partition struct {
	pgname.Table
	OID         uint32
	Kind        string // as TableFacts.Kind
	Persistence string
}

// An Index is a valid index of a table. The name of an expression is empty.
type Index struct {
	Columns []string
	Where   string // the condition of a partial index
}

// ReadingRights is the SQL that lets a role read a table: the right to use its schema, and the right to select.
func ReadingRights(t pgname.Table, role string) string {
	return fmt.Sprintf("GRANT USAGE ON SCHEMA %[1]s TO %[3]s;\nGRANT SELECT ON %[2]s TO %[3]s;", pgname.QuoteIdent(t.Schema), t.SQL(), pgname.QuoteIdent(role))
}

func (t *TableFacts) Exists() bool { return t.OID != 0 }

// Identified says that a row can be told by its replica identity.
func (t *TableFacts) Identified() bool {
	return t.Identity == "f" || t.Identity == "i" || t.Identity == "d" && t.HasKey
}

// Partitioned reports whether the rows are in partitions.
func (t *TableFacts) Partitioned() bool { return t.Kind == "p" }

// Stores are the tables that hold the rows: the table itself, or its partitions, as far as these are ordinary and logged.
func (t *TableFacts) Stores() (stores []pgname.Table) {
	if !t.Partitioned() {
		return []pgname.Table{t.Table}
	}
	for _, p := range t.Partitions {
		if p.Kind == "r" && p.Persistence == "p" {
			stores = append(stores, p.Table)
		}
	}
	return stores
}

// IndexedBy reports whether an index of all rows begins with a column.
func (t *TableFacts) IndexedBy(column string) bool {
	return slices.ContainsFunc(t.Indexes, func(i Index) bool { return i.Where == "" && i.Columns[0] == column })
}

// From is the table in a FROM clause under an alias. Rows of child tables (inheritance) are not published under the parent's name.
func (t *TableFacts) From(alias string) string {
	if t.Partitioned() {
		return t.SQL() + " " + alias
	}
	return "ONLY " + t.SQL() + " " + alias
}

func tablesQuery(tables []pgname.Table) string {
	values := make([]string, len(tables))
	for i, t := range tables {
		values[i] = fmt.Sprintf("(%d, %s::text, %s::text)", i, pgname.QuoteLiteral(t.Schema), pgname.QuoteLiteral(t.Name))
	}
	return `SELECT c.oid, c.relkind AS kind, c.relpersistence AS persistence, c.relreplident AS identity,
 EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS has_key,
 pg_get_userbyid(c.relowner) AS owner, pg_has_role(c.relowner, 'USAGE') AS owned, has_schema_privilege(c.relnamespace, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS readable, row_security_active(c.oid) AS secured,
 CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::regclass::text END AS root,
 CASE c.relkind WHEN 'p' THEN (SELECT json_agg(json_build_object('oid', p.oid::bigint, 'schema', pn.nspname, 'name', p.relname, 'kind', p.relkind, 'persistence', p.relpersistence) ORDER BY pn.nspname, p.relname)
   FROM pg_partition_tree(c.oid) below JOIN pg_class p ON p.oid = below.relid JOIN pg_namespace pn ON pn.oid = p.relnamespace WHERE below.level > 0) END AS partitions,
 (SELECT a.attname FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
  WHERE p.partrelid = c.oid AND p.partstrat = 'r' AND p.partnatts = 1) AS range_column,
 (SELECT json_agg(json_build_object('where', pg_get_expr(i.indpred, i.indrelid), 'columns', (SELECT json_agg(coalesce(a.attname, '') ORDER BY k.n)
    FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (at, n) LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.at WHERE k.n <= i.indnkeyatts)))
   FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid) AS indexes,
 CASE WHEN c.oid IS NOT NULL THEN json_build_object('columns', (SELECT json_agg(json_build_object('name', a.attname, 'typeoid', a.atttypid::bigint, 'typemod', a.atttypmod,
   'key', c.relreplident = 'f' OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey)
     AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)) ORDER BY a.attnum)
  FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)) END AS relation,
 NOT EXISTS (SELECT FROM pg_namespace s WHERE s.nspname = v.nsp) AS no_schema,
 CASE WHEN c.oid IS NULL THEN (SELECT json_agg(quote_ident(sn.nspname) || '.' || quote_ident(sc.relname)) FROM pg_class sc JOIN pg_namespace sn ON sn.oid = sc.relnamespace
  WHERE lower(sn.nspname) = lower(v.nsp) AND lower(sc.relname) = lower(v.rel) AND sc.relkind IN ('r', 'p')) END AS similar
 FROM (VALUES ` + strings.Join(values, ", ") + `) v(ord, nsp, rel)
 LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')) ON n.nspname = v.nsp AND c.relname = v.rel
 ORDER BY v.ord`
}

// ReadSlot reads the slot of that name, or nil.
func ReadSlot(ctx context.Context, conn *pgconn.PgConn, name string) (*Slot, error) {
	slots, err := Rows[Slot](ctx, conn, "read slot "+name, slotQuery(name))
	if err != nil || len(slots) == 0 {
		return nil, err
	}
	return &slots[0], nil
}

func ReadServer(ctx context.Context, conn *pgconn.PgConn) (Server, error) {
	return Row[Server](ctx, conn, "read the server's settings", serverQuery)
}

// Describe reads everything about the slot, the publication and the tables; the server comes first, so that its position
// is one that the rest is not older than.
func (n Names) Describe(ctx context.Context, conn *pgconn.PgConn) (*Facts, error) {
	server, err := ReadServer(ctx, conn)
	if err != nil {
		return nil, err
	}
	f := &Facts{Server: server}
	if f.Slot, err = ReadSlot(ctx, conn, n.Slot); err != nil {
		return nil, err
	}
	if err := n.DescribePublished(ctx, conn, f); err != nil {
		return nil, err
	}
	f.Publishing, err = n.ReadPublishing(ctx, conn, server.Version)
	return f, err
}

// DescribePublished reads the publication and the tables into f.
func (n Names) DescribePublished(ctx context.Context, conn *pgconn.PgConn, f *Facts) error {
	publications, err := Rows[Publication](ctx, conn, "read publication "+n.Publication, publicationQuery(n.Publication))
	if err != nil {
		return err
	}
	f.Publication = nil
	if len(publications) > 0 {
		f.Publication = &publications[0]
		if f.Publication.Tables, err = Rows[PublishedTable](ctx, conn, "read the tables of publication "+n.Publication, publishedQuery(n.Publication)); err != nil {
			return err
		}
	}
	tables := n.Tables
	if len(tables) == 0 {
		return nil
	}
	if f.Tables, err = Rows[TableFacts](ctx, conn, "read the tables", tablesQuery(tables)); err != nil {
		return err
	}
	if len(f.Tables) != len(tables) {
		return fmt.Errorf("read the tables: %w: %d rows for %d tables", ErrAnswer, len(f.Tables), len(tables))
	}
	for i := range f.Tables {
		t := &f.Tables[i]
		t.Table = tables[i]
		if !t.Exists() {
			continue
		}
		t.Relation.ID, t.Relation.Schema, t.Relation.Name = t.OID, t.Table.Schema, t.Table.Name
		if t.Identity != "" {
			t.Relation.ReplicaIdentity = t.Identity[0]
		}
		if err := FillCatalog(ctx, conn, t.Relation); err != nil {
			return err
		}
	}
	return nil
}

// Roots is the table that rows are rows of, by the OID that the stream gives them: of the table itself, which may have had another
// name when a row was written, or of its partition. A partition that is one of the tables itself stays itself.
func (f *Facts) Roots() map[uint32]pgname.Table {
	roots := map[uint32]pgname.Table{}
	for i := range f.Tables {
		for _, below := range f.Tables[i].Partitions {
			roots[below.OID] = f.Tables[i].Table
		}
	}
	for i := range f.Tables {
		if t := &f.Tables[i]; t.Exists() {
			roots[t.OID] = t.Table
		}
	}
	return roots
}

// Streamed is the relation as the stream has it: the columns that are published, in their order.
func (t *TableFacts) Streamed(p *Publication, version int) *cdc.Relation {
	var listed []string // nothing is known of them where the table is not published, and before 15
	if p != nil {
		if published := p.Table(t.Table); published != nil {
			listed = published.Columns
		}
	}
	rel := *t.Relation
	rel.Columns = nil
	for _, c := range t.Relation.Columns {
		in := len(listed) == 0 || slices.Contains(listed, c.Name)
		// 15 lists generated columns too, and no server before 18 sends them; 18 lists those that it sends.
		if in && !(c.Generated && (version < 180000 || len(listed) == 0)) {
			rel.Columns = append(rel.Columns, c)
		}
	}
	return &rel
}
