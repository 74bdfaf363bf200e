package cleanup

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	ipg "github.com/walpost/walpost/internal/pg"

	"github.com/walpost/walpost/internal/lib/pgname"
)

// as has the cleaner connect as a new role, and returns its name.
func (p *place) as() string {
	p.Helper()
	role := "r_" + p.slot
	p.exec("CREATE ROLE " + role)
	p.Cleanup(func() { _, _ = p.sql.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	p.cfg.Connect = func(ctx context.Context) (*pgconn.PgConn, error) {
		conn, err := pgconn.Connect(ctx, p.dsn)
		if err == nil {
			err = conn.Exec(ctx, "SET ROLE "+role).Close()
		}
		return conn, err
	}
	return role
}

// A partition that cannot be detached or dropped keeps no other one. The error stays until its cause is gone.
func TestAPartitionThatCannotGoKeepsNoOther(t *testing.T) {
	for name, c := range map[string]struct{ breaks, mends, state string }{
		"another owner": {"", "ALTER TABLE outbox_a OWNER TO {role}", ipg.StateNoRight},
		"a foreign key to the table": {
			"CREATE TABLE other (id int, at timestamptz, FOREIGN KEY (id, at) REFERENCES outbox); INSERT INTO other SELECT id, created_at FROM outbox_a; ALTER TABLE other OWNER TO {role}",
			"DROP TABLE other", "23503",
		},
		"a view of it": {"CREATE VIEW seen AS SELECT * FROM outbox_a", "DROP VIEW seen", "2BP01"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, "", partitioned, Settings{Config: Config{Mode: DropPartitions, Keep: 48 * time.Hour}})
			p.exec(part("outbox_a", -6, -5), part("outbox_b", -5, -4), part("outbox_now", 0, 1),
				"INSERT INTO outbox SELECT 1, date_trunc('day', now()) + '-6 days 2 hours'", "INSERT INTO outbox SELECT 2, date_trunc('day', now()) + '-5 days 2 hours'")
			role := p.as()
			p.exec("GRANT CREATE ON SCHEMA public TO "+role, "ALTER TABLE outbox OWNER TO "+role, "ALTER TABLE outbox_b OWNER TO "+role, "ALTER TABLE outbox_now OWNER TO "+role)
			if name != "another owner" {
				p.exec("ALTER TABLE outbox_a OWNER TO " + role)
			}
			if c.breaks != "" {
				p.exec(strings.ReplaceAll(c.breaks, "{role}", role))
			}
			p.run()
			p.confirm()
			var failed *pgconn.PgError
			if err := p.pass(p.ctx); !errors.As(err, &failed) || failed.Code != c.state {
				t.Errorf("%v, want SQLSTATE %s", err, c.state)
			}
			if got := p.parts(); !slices.Equal(got, []string{"outbox_a", "outbox_now"}) {
				t.Errorf("left: %v", got)
			}
			p.exec(strings.ReplaceAll(c.mends, "{role}", role))
			for range 3 { // no new connection, and so no new mark
				p.run()
			}
			if got := p.parts(); !slices.Equal(got, []string{"outbox_now"}) {
				t.Errorf("left: %v (%+v)", got, p.Status())
			}
		})
	}
}

// The same holds for the tables, and for the partitions that rows are deleted from.
func TestATableThatCannotBeCleanedKeepsNoOther(t *testing.T) {
	p := newPlace(t, "", partitioned, Settings{Config: Config{Mode: Delete}})
	p.exec(part("outbox_a", -6, -5), part("outbox_b", -5, -4), "CREATE TABLE aside (LIKE outbox)", "CREATE TABLE other (LIKE outbox)", "ALTER PUBLICATION pub ADD TABLE aside, other",
		"INSERT INTO outbox SELECT 1, date_trunc('day', now()) + '-6 days 2 hours'", "INSERT INTO outbox SELECT 2, date_trunc('day', now()) + '-5 days 2 hours'",
		"INSERT INTO other VALUES (3, now() - interval '1 day')")
	p.cfg.Tables = []pgname.Table{{Schema: "public", Name: "aside"}, {Schema: "public", Name: "outbox"}, {Schema: "public", Name: "other"}}
	role := p.as()
	p.exec("GRANT SELECT, DELETE, UPDATE ON outbox, outbox_b, other TO " + role)
	p.run()
	p.confirm()
	if err := p.pass(p.ctx); ipg.SQLState(err) != ipg.StateNoRight {
		t.Errorf("%v", err)
	}
	p.want("of the only partition without rights", 1)
	if got := p.value("SELECT count(*)::text FROM other"); got != "0" {
		t.Errorf("%s rows of the third table are left", got)
	}
}
