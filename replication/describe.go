package replication

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
)

// facts are what the catalog of a server says about everything a stream rests on. Reading them judges nothing.
type facts struct {
	server      serverFacts
	slot        *slotFacts // nil: there is none of that name
	publication *publicationFacts
	tables      []tableFacts // one for each of Config.Tables, in order
	publishing  publishing
	// streams says that a connection in replication mode was accepted, which proves the right to it.
	streams bool
}

type serverFacts struct {
	Version       int
	Recovery      bool
	LSN           lsn
	Now           time.Time // by the server's clock
	Started       string    // when the postmaster started: it tells two servers, or two lives of one, apart
	SystemID      string    `json:"system_id"`
	Timeline      uint32    // 0 on a standby
	Database      string
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
}

const serverQuery = `SELECT current_setting('server_version_num')::int AS version, pg_is_in_recovery() AS recovery,
 CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END AS lsn,
 clock_timestamp() AS now, pg_postmaster_start_time()::text AS started, (SELECT system_identifier::text FROM pg_control_system()) AS system_id,
 CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END AS timeline,
 current_database() AS database, current_setting('wal_level') AS wal_level,
 (SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout') AS sender_timeout,
 current_setting('max_replication_slots')::int AS max_slots, (SELECT count(*) FROM pg_replication_slots) AS slots,
 current_setting('max_wal_senders')::int AS max_senders, (SELECT count(*) FROM pg_stat_replication) AS senders,
 (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep_mb,
 current_setting('synchronous_standby_names') AS syncstandbys,
 r.rolname AS role, r.rolsuper AS super, r.rolreplication AS replication,
 EXISTS (SELECT FROM pg_roles m WHERE m.rolname IN ('rds_replication', 'rds_superuser', 'rdsadmin') AND pg_has_role(r.oid, m.oid, 'MEMBER')) AS managed,
 has_database_privilege(current_database(), 'CREATE') AS can_create
 FROM pg_roles r WHERE r.rolname = current_user`

// slotFacts is a row of pg_replication_slots; what a version does not have stays zero.
type slotFacts struct {
	Plugin        string
	Type          string `json:"slot_type"`
	Database      string
	Temporary     bool
	Active        bool
	ActivePID     int32  `json:"active_pid"`
	Restart       lsn    `json:"restart_lsn"`
	Confirmed     lsn    `json:"confirmed_flush_lsn"`
	WALStatus     string `json:"wal_status"`
	TwoPhase      bool   `json:"two_phase"`
	Conflicting   bool
	InactiveSince *time.Time `json:"inactive_since"`
	Invalidation  string     `json:"invalidation_reason"`
	Failover      bool
	Synced        bool
}

func slotQuery(name string) string {
	return "SELECT * FROM pg_replication_slots WHERE slot_name = " + quoteLiteral(name)
}

// lost is the reason why the server has invalidated the slot, or "".
func (s *slotFacts) lost() string {
	switch {
	case s.Invalidation != "": // 17 and newer
		return s.Invalidation
	case s.WALStatus == "lost", s.Conflicting:
		return "lost"
	}
	return ""
}

func (s *slotFacts) state() cdc.SlotState {
	if s == nil {
		return cdc.SlotState{}
	}
	state := cdc.SlotState{
		Exists: true, Confirmed: cdc.Position(s.Confirmed), Restart: cdc.Position(s.Restart),
		Active: s.Active, ActivePID: s.ActivePID, WALStatus: s.WALStatus, Invalidation: s.lost(),
	}
	if s.InactiveSince != nil && !s.Active {
		state.InactiveSince = *s.InactiveSince
	}
	return state
}

type publicationFacts struct {
	AllTables bool `json:"puballtables"`
	Insert    bool `json:"pubinsert"`
	Update    bool `json:"pubupdate"`
	Delete    bool `json:"pubdelete"`
	Truncate  bool `json:"pubtruncate"`
	ViaRoot   bool `json:"pubviaroot"`

	tables []publishedTable
}

// publishedTable is a row of pg_publication_tables. Before 15 there are no column lists and no filters.
type publishedTable struct {
	Schema  string   `json:"schemaname"`
	Name    string   `json:"tablename"`
	Columns []string `json:"attnames"`
	Filter  string   `json:"rowfilter"`
}

func (p *publicationFacts) table(t Table) *publishedTable {
	for i := range p.tables {
		if p.tables[i].Schema == t.Schema && p.tables[i].Name == t.Name {
			return &p.tables[i]
		}
	}
	return nil
}

func publicationQuery(name string) string {
	return "SELECT * FROM pg_publication WHERE pubname = " + quoteLiteral(name)
}

func publishedQuery(name string) string {
	return "SELECT * FROM pg_publication_tables WHERE pubname = " + quoteLiteral(name) + " ORDER BY schemaname, tablename"
}

type tableFacts struct {
	Table       Table `json:"-"`
	OID         oid
	Kind        string // r table, p partitioned, v view, m materialized view, f foreign
	Persistence string // p permanent, u unlogged, t temporary
	Identity    string // replica identity: d, n, f, i
	HasKey      bool   `json:"has_key"`
	Owner       string
	Owned       bool // by a role that we are
	Readable    bool
	Columns     []columnFacts
	Similar     []string // where the table does not exist: names that differ in case only
	NoSchema    bool     `json:"no_schema"`
	Root        string   // of a partition: its topmost table
	Partitions  []uint32 // OIDs of all below a partitioned table

	relation *cdc.Relation // as Config.Needs sees it; nil where the table does not exist
}

func (t *tableFacts) exists() bool { return t.OID != 0 }

// identified says that a row can be told by its replica identity.
func (t *tableFacts) identified() bool {
	return t.Identity == "f" || t.Identity == "i" || t.Identity == "d" && t.HasKey
}

type columnFacts struct {
	Name      string
	Type      uint32
	Typmod    int32
	Key       bool
	Generated string
}

func (t *tableFacts) column(name string) *columnFacts {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return &t.Columns[i]
		}
	}
	return nil
}

func tablesQuery(tables []Table) string {
	values := make([]string, len(tables))
	for i, t := range tables {
		values[i] = fmt.Sprintf("(%d, %s::text, %s::text)", i, quoteLiteral(t.Schema), quoteLiteral(t.Name))
	}
	return `SELECT c.oid, c.relkind AS kind, c.relpersistence AS persistence, c.relreplident AS identity,
 EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS has_key,
 pg_get_userbyid(c.relowner) AS owner, pg_has_role(c.relowner, 'USAGE') AS owned, has_table_privilege(c.oid, 'SELECT') AS readable,
 CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::regclass::text END AS root,
 CASE c.relkind WHEN 'p' THEN (SELECT json_agg(below.relid::oid::bigint) FROM pg_partition_tree(c.oid) below WHERE below.level > 0) END AS partitions,
 (SELECT json_agg(json_build_object('name', a.attname, 'type', a.atttypid::bigint, 'typmod', a.atttypmod, 'generated', a.attgenerated,
   'key', c.relreplident = 'f' OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey)
     AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)) ORDER BY a.attnum)
  FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
 NOT EXISTS (SELECT FROM pg_namespace s WHERE s.nspname = v.nsp) AS no_schema,
 CASE WHEN c.oid IS NULL THEN (SELECT json_agg(quote_ident(sn.nspname) || '.' || quote_ident(sc.relname)) FROM pg_class sc JOIN pg_namespace sn ON sn.oid = sc.relnamespace
  WHERE lower(sn.nspname) = lower(v.nsp) AND lower(sc.relname) = lower(v.rel) AND sc.relkind IN ('r', 'p')) END AS similar
 FROM (VALUES ` + strings.Join(values, ", ") + `) v(ord, nsp, rel)
 LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')) ON n.nspname = v.nsp AND c.relname = v.rel
 ORDER BY v.ord`
}

// readSlot reads the slot of that name, or nil.
func readSlot(ctx context.Context, conn *pgconn.PgConn, name string) (*slotFacts, error) {
	slots, err := rows[slotFacts](ctx, conn, "read slot "+name, slotQuery(name))
	if err != nil || len(slots) == 0 {
		return nil, err
	}
	return &slots[0], nil
}

func readServer(ctx context.Context, conn *pgconn.PgConn) (serverFacts, error) {
	return row[serverFacts](ctx, conn, "read the server's settings", serverQuery)
}

// describe reads everything about the slot, the publication and the tables; the server comes first, so that its position
// is one that the rest is not older than.
func (c *Config) describe(ctx context.Context, conn *pgconn.PgConn) (*facts, error) {
	server, err := readServer(ctx, conn)
	if err != nil {
		return nil, err
	}
	f := &facts{server: server}
	if f.slot, err = readSlot(ctx, conn, c.Slot); err != nil {
		return nil, err
	}
	if err := c.describePublished(ctx, conn, f); err != nil {
		return nil, err
	}
	f.publishing, err = c.readPublishing(ctx, conn, server.Version)
	return f, err
}

// describePublished reads the publication and the tables into f.
func (c *Config) describePublished(ctx context.Context, conn *pgconn.PgConn, f *facts) error {
	publications, err := rows[publicationFacts](ctx, conn, "read publication "+c.Publication, publicationQuery(c.Publication))
	if err != nil {
		return err
	}
	f.publication = nil
	if len(publications) > 0 {
		f.publication = &publications[0]
		if f.publication.tables, err = rows[publishedTable](ctx, conn, "read the tables of publication "+c.Publication, publishedQuery(c.Publication)); err != nil {
			return err
		}
	}
	tables := c.tables()
	if len(tables) == 0 {
		return nil
	}
	if f.tables, err = rows[tableFacts](ctx, conn, "read the tables", tablesQuery(tables)); err != nil {
		return err
	}
	if len(f.tables) != len(tables) {
		return fmt.Errorf("read the tables: %w: %d rows for %d tables", errAnswer, len(f.tables), len(tables))
	}
	for i := range f.tables {
		t := &f.tables[i]
		t.Table = tables[i]
		if !t.exists() {
			continue
		}
		t.relation = t.asRelation()
		if err := fillCatalog(ctx, conn, t.relation); err != nil {
			return err
		}
	}
	return nil
}

// roots is the table that each partition's rows are rows of, by the partition's OID. A partition that is one of the tables itself stays itself.
func (f *facts) roots() map[uint32]Table {
	roots := map[uint32]Table{}
	for i := range f.tables {
		for _, below := range f.tables[i].Partitions {
			roots[below] = f.tables[i].Table
		}
	}
	for i := range f.tables {
		delete(roots, uint32(f.tables[i].OID))
	}
	return roots
}

func (t *tableFacts) asRelation() *cdc.Relation {
	rel := &cdc.Relation{ID: uint32(t.OID), Schema: t.Table.Schema, Name: t.Table.Name, Columns: make([]cdc.Column, len(t.Columns))}
	if t.Identity != "" {
		rel.ReplicaIdentity = t.Identity[0]
	}
	for i, c := range t.Columns {
		rel.Columns[i] = cdc.Column{Name: c.Name, TypeOID: c.Type, TypeMod: c.Typmod, Key: c.Key}
	}
	return rel
}
