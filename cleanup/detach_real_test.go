package cleanup

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func (p *place) connect() *pgx.Conn {
	p.Helper()
	c, err := pgx.Connect(p.ctx, p.dsn)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// A transaction that reads as of an earlier moment sees a partition that is being detached, and what it writes there is not
// published. So it must not be able to: all that it wrote is published, or it failed.
func TestARowCannotBeWrittenToAPartitionThatIsBeingDetached(t *testing.T) {
	p := newPlace(t, "", partitioned, Settings{Config: Config{Mode: DropPartitions, Keep: 48 * time.Hour}})
	p.exec(part("outbox_old", -5, -4), part("outbox_now", 0, 1))
	p.run()
	p.confirm()
	slot := p.slot + "x"
	p.exec("SELECT pg_create_logical_replication_slot('" + slot + "', 'pgoutput')")
	t.Cleanup(func() { _, _ = p.sql.Exec(context.Background(), "SELECT pg_drop_replication_slot('"+slot+"')") })
	writer := p.connect()
	for _, s := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "INSERT INTO outbox VALUES (1, now())"} {
		if _, err := writer.Exec(p.ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	p.run() // gives way to the writer in the middle of the detach
	if p.value("SELECT EXISTS (SELECT FROM pg_inherits WHERE inhdetachpending)::text") != "true" {
		t.Fatal("no detach is pending: this says nothing")
	}
	written := 1
	if _, err := writer.Exec(p.ctx, "INSERT INTO outbox VALUES (2, date_trunc('day', now()) + '-5 days 2 hours')"); err == nil {
		written++
	} else if !strings.Contains(err.Error(), closed) {
		t.Fatal(err)
	}
	if written == 2 {
		if _, err := writer.Exec(p.ctx, "COMMIT"); err != nil {
			t.Fatal(err)
		}
	} else if _, err := writer.Exec(p.ctx, "ROLLBACK"); err != nil {
		t.Fatal(err)
	} else {
		written = 0
	}
	var published int
	if err := p.sql.QueryRow(p.ctx, "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('"+slot+
		"', NULL, NULL, 'proto_version', '1', 'publication_names', 'pub') WHERE get_byte(data, 0) = ascii('I')").Scan(&published); err != nil {
		t.Fatal(err)
	}
	if published != written {
		t.Errorf("%d rows were written, %d are published", written, published)
	}
	p.run()
	p.confirm()
	p.run()
	if got := p.parts(); !slices.Equal(got, []string{"outbox_now"}) {
		t.Errorf("left: %v", got)
	}
}

// A partition that was shut and is to be kept after all takes rows again.
func TestAPartitionThatIsToBeKeptAfterAllIsOpenedAgain(t *testing.T) {
	p := newPlace(t, "", partitioned, Settings{Config: Config{Mode: DropPartitions, Keep: 480 * time.Hour}})
	p.exec(part("outbox_old", -5, -4), "ALTER TABLE outbox_old ADD CONSTRAINT "+closed+" CHECK (false) NOT VALID",
		"COMMENT ON TABLE outbox_old IS '"+remark+"public.outbox'")
	p.run()
	p.confirm()
	p.run()
	p.exec("INSERT INTO outbox SELECT 1, date_trunc('day', now()) + '-5 days 2 hours'", "ALTER TABLE outbox DETACH PARTITION outbox_old")
	p.run()
	p.confirm()
	p.run()
	if got := p.parts(); !slices.Equal(got, []string{"outbox_old"}) {
		t.Errorf("a user's own detached table was dropped; left: %v", got)
	}
}

// What is not in the WAL, or has partitions of its own, is left alone.
func TestPartitionsOfOtherKindsAreLeftAlone(t *testing.T) {
	for _, mode := range []Mode{Delete, DropPartitions} {
		t.Run(string(mode), func(t *testing.T) {
			p := newPlace(t, "", partitioned, Settings{Config: Config{Mode: mode}})
			p.exec(part("outbox_a", -5, -4), "ALTER TABLE outbox DETACH PARTITION outbox_a", "DROP TABLE outbox_a",
				`DO $$ BEGIN EXECUTE format('CREATE TABLE outbox_tree PARTITION OF outbox FOR VALUES FROM (%L) TO (%L) PARTITION BY LIST (id)',
 date_trunc('day', now()) - interval '5 days', date_trunc('day', now()) - interval '4 days');
 EXECUTE format('CREATE UNLOGGED TABLE outbox_unlogged PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)',
 date_trunc('day', now()) - interval '7 days', date_trunc('day', now()) - interval '6 days'); END $$`,
				"CREATE TABLE outbox_leaf PARTITION OF outbox_tree DEFAULT",
				"INSERT INTO outbox SELECT 1, date_trunc('day', now()) + '-5 days 2 hours'",
				"INSERT INTO outbox SELECT 2, date_trunc('day', now()) + '-7 days 2 hours'")
			p.run()
			p.confirm()
			p.run()
			if mode == Delete {
				p.want("an unlogged row is not published", 2)
				return
			}
			p.want("neither is detached", 1, 2)
			p.run() // it shows the hints of the pass before
			if s := p.Status(); len(s.Hints) != 2 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A role that may not do it is told what it needs, and one that a policy hides rows from does not take them for delivered.
func TestMissingRightsAreSaid(t *testing.T) {
	for name, c := range map[string]struct{ grant, want string }{
		"no right":     {"GRANT SELECT ON outbox TO %s", `run: GRANT SELECT, DELETE, UPDATE ("created_at") ON "public"."outbox" TO "r_`},
		"row security": {"GRANT SELECT, DELETE, UPDATE ON outbox TO %s; ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", "row-level security"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, "", plainTable, Settings{Config: Config{Mode: Delete}})
			p.exec(strings.ReplaceAll(c.grant, "%s", p.as()), insert(1, "1 hour"))
			p.run()
			p.confirm()
			if err := p.pass(p.ctx); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
			p.want("nothing is removed", 1)
		})
	}
}
