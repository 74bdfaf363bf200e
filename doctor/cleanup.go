package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/replication"
)

// cleanedTable is what the one who removes old rows (package cleanup) needs of a table.
type cleanedTable struct {
	OID       uint32 `json:",string"`
	Barred    []string
	Foreign   []string // partitions that belong to others
	Unplain   []string // partitions that are partitioned themselves, foreign or unlogged
	MayUse    bool     `json:"may_use"`    // its schema
	MayCreate bool     `json:"may_create"` // tables in its schema
}

// cleanedQuery asks the rights on each leaf by itself, because rows are deleted from the partitions, not through their parent.
func cleanedQuery(oids []string) string {
	return `SELECT c.oid, has_schema_privilege(n.oid, 'USAGE') AS may_use, has_schema_privilege(n.oid, 'CREATE') AS may_create,
 (SELECT json_agg(l.oid::regclass::text ORDER BY l.oid::regclass::text) FROM pg_class l WHERE (l.oid = c.oid AND c.relkind = 'r'
   OR l.oid IN (SELECT t.relid FROM pg_partition_tree(c.oid) t WHERE t.isleaf)) AND l.relkind = 'r' AND l.relpersistence = 'p'
   AND NOT (has_schema_privilege(l.relnamespace, 'USAGE') AND has_table_privilege(l.oid, 'SELECT') AND has_table_privilege(l.oid, 'DELETE')
     AND has_any_column_privilege(l.oid, 'UPDATE'))) AS barred,
 (SELECT json_agg(l.oid::regclass::text ORDER BY l.oid::regclass::text) FROM pg_inherits i JOIN pg_class l ON l.oid = i.inhrelid
   WHERE i.inhparent = c.oid AND NOT pg_has_role(l.relowner, 'USAGE')) AS foreign,
 (SELECT json_agg(l.oid::regclass::text ORDER BY l.oid::regclass::text) FROM pg_inherits i JOIN pg_class l ON l.oid = i.inhrelid
   WHERE i.inhparent = c.oid AND NOT (l.relkind = 'r' AND l.relpersistence = 'p')) AS unplain
 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN (` + strings.Join(oids, ", ") + `)`
}

// checkCleanup is what checkPostgres finds of the cleanup, for tables that no slot reads.
func checkCleanup(ctx context.Context, conn *pgconn.PgConn, cfg *replication.Config, f *pg.Facts) []Finding {
	if !cfg.Outbox.Cleans() || f.Server.Version < pg.MinVersion {
		return nil
	}
	polled := *cfg
	polled.Publication = "" // one may exist, and says nothing about what is polled
	x := &examination{cfg: &polled, f: f, List: condition.List{Side: Postgres, Provider: f.Server.Provider}}
	var err error
	if x.settings, err = pg.Row[settings](ctx, conn, "read the settings", settingsQuery("")); err == nil {
		err = x.readCleanup(ctx, conn)
	}
	if err != nil {
		x.Warn("settings", nil, "%s", err)
	}
	x.sessions()
	x.cleanup()
	return x.Found
}

// readCleanup reads what a cleanup needs, if there is to be one.
func (x *examination) readCleanup(ctx context.Context, conn *pgconn.PgConn) (err error) {
	if oids := existing(x.f.Tables); x.cfg.Outbox.Cleans() && len(oids) > 0 {
		x.cleaned, err = pg.Rows[cleanedTable](ctx, conn, "read what the cleanup needs", cleanedQuery(oids))
	}
	for i := range x.f.Tables {
		if t := x.f.Tables[i].Table; err == nil && x.cfg.Outbox.Archives {
			a, failed := cleanup.LookAtArchive(ctx, conn, t, t.Archive(x.cfg.Outbox.ArchiveTable), x.cfg.Publication)
			if err = failed; err == nil {
				x.archives = append(x.archives, a)
			}
		}
	}
	return err
}

// removal are the settings of a cleanup by this configuration, as far as Conditions asks.
func (x *examination) removal() *cleanup.Settings {
	outbox := &x.cfg.Outbox
	s := &cleanup.Settings{Config: cleanup.Config{Mode: cleanup.Delete}, TimeColumn: outbox.Time(), Publication: x.cfg.Publication}
	if outbox.Owns {
		s.Mode = cleanup.DropPartitions
	}
	return s
}

// cleanup judges what the removal of old rows rests on. The stream does not; but who has asked for a cleanup and gets none has a
// table that grows.
func (x *examination) cleanup() {
	if !x.cfg.Outbox.Cleans() {
		return
	}
	if x.f.Server.Recovery {
		x.Fail("cleanup", fix.ByWords("Point source.dsn at the primary, or remove cleanup.mode."), "the server is a standby: nothing can be removed there")
		return
	}
	for i := range x.f.Tables {
		t := &x.f.Tables[i]
		rights := slices.IndexFunc(x.cleaned, func(c cleanedTable) bool { return c.OID == t.OID })
		if rights < 0 || t.Kind != "r" && t.Kind != "p" {
			continue
		}
		if name := "cleanup of " + t.Table.String(); x.removal().Conditions(&x.List, t, x.f.Publication.Filter(t.Table)) {
			before := len(x.Found)
			for _, a := range x.archives {
				if a.Of == t.Table {
					a.Conditions(&x.List, x.f.Server.Role)
				}
			}
			x.cleanupRights(name, t, &x.cleaned[rights])
			if len(x.Found) > before {
				continue
			}
			x.Met(name, "role %s may remove old rows of %s", x.f.Server.Role, t.Table)
		}
	}
}

// cleanupRights judges what the role may do with a table. Only the owner may make and drop partitions.
func (x *examination) cleanupRights(name string, t *pg.TableFacts, c *cleanedTable) {
	role, quoted := x.f.Server.Role, pgname.QuoteIdent(x.f.Server.Role)
	if !x.cfg.Outbox.Owns {
		if len(c.Barred) == 0 {
			return
		}
		grants := make([]string, 0, 4)
		if !c.MayUse {
			grants = append(grants, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", pgname.QuoteIdent(t.Schema), quoted))
		}
		for _, leaf := range c.Barred[:min(3, len(c.Barred))] {
			grants = append(grants, fmt.Sprintf("GRANT SELECT, DELETE, UPDATE (%s) ON %s TO %s;", pgname.QuoteIdent(x.cfg.Outbox.Time()), leaf, quoted))
		}
		by := fix.BySQL(strings.Join(grants, " "))
		if t.Partitioned() {
			by = append(by, fix.Words("(grant this on every partition, including future ones)"))
		}
		x.Fail(name, by, "role %s may not delete from %s: old rows are not removed (to skip locked rows, walpost also needs UPDATE on one column)", role, condition.Some(c.Barred))
		return
	}
	if !t.Owned {
		x.Fail(name, fix.BySQL(fmt.Sprintf("ALTER TABLE %s OWNER TO %s;", t.Table.SQL(), quoted)),
			"%s belongs to %s: role %s may neither create nor drop its partitions", t.Table, t.Owner, role)
	}
	if len(c.Foreign) > 0 {
		x.Fail(name, fix.Fix{fix.SQL(fmt.Sprintf("ALTER TABLE %s OWNER TO %s;", c.Foreign[0], quoted)), fix.Words("(repeat for each one)")},
			"role %s may not drop %s, which belong to other roles", role, condition.Some(c.Foreign))
	}
	if !c.MayCreate {
		x.Fail(name, fix.BySQL(fmt.Sprintf("GRANT CREATE ON SCHEMA %s TO %s;", pgname.QuoteIdent(t.Schema), quoted)),
			"role %s may not create tables in schema %s: walpost cannot create partitions for future rows", role, t.Schema)
	}
	if len(c.Unplain) > 0 {
		x.Warn(name, fix.ByWords("Drop them by hand once their rows are delivered."), "%s are partitioned, foreign or unlogged: walpost never drops them", condition.Some(c.Unplain))
	}
}
