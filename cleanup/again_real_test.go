package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// touched is how many blocks of a table the cleaner has read so far.
func (p *place) touched(table string) int {
	p.Helper()
	if err := p.own("SELECT pg_stat_force_next_flush()"); err != nil {
		p.Fatal(err)
	}
	p.exec("SELECT pg_stat_force_next_flush()", "SELECT pg_stat_clear_snapshot()")
	n, err := strconv.Atoi(p.value("SELECT (heap_blks_read + heap_blks_hit)::text FROM pg_statio_all_tables WHERE relid = '" + table + "'::regclass"))
	if err != nil {
		p.Fatal(err)
	}
	return n
}

// own runs a statement on the cleaner's connection.
func (p *place) own(sql string) error { return p.Cleaner.exec(p.ctx, "test", sql) }

const withEvents = "CREATE TABLE outbox (id int, event %s, created_at timestamptz NOT NULL, filler text) PARTITION BY RANGE (created_at)"

// An old partition that stays because of a row at its end is not read again in each pass.
// It goes when the row need not stay any more: the event is closed, or the row was removed.
func TestAPartitionThatStaysIsReadOnce(t *testing.T) {
	for name, c := range map[string]struct{ column, id, ends string }{
		"the event is closed": {"uuid", "00000000-0000-0000-0000-0000000000c8", ""},
		"an event without id": {"int", "", ""},
		"the row is removed":  {"text", "{\"a\", b}", "DELETE FROM outbox WHERE id = 200"},
	} {
		t.Run(name, func(t *testing.T) {
			kept := []string{"9", "x", c.id}
			p := newPlace(t, "18", fmt.Sprintf(withEvents, c.column),
				Settings{Config: Config{Mode: DropPartitions, Keep: 48 * time.Hour}, IDColumn: idColumn, Kept: func(context.Context) ([]string, error) { return kept, nil }})
			p.exec(part("outbox_old", -5, -4), part("outbox_now", 0, 1))
			p.fill("outbox_old")
			if c.id == "" {
				p.exec("UPDATE outbox_old SET event = 1")
			}
			p.exec("UPDATE outbox_old SET event = nullif('" + c.id + "', '')::" + c.column + " WHERE id = 200")
			p.exec("VACUUM FULL outbox_old")
			blocks, err := strconv.Atoi(p.value("SELECT (pg_relation_size('outbox_old') / 8192)::text"))
			if err != nil || blocks < 20 {
				t.Fatal(blocks, err)
			}
			p.run()
			before := p.touched("outbox_old")
			p.confirm()
			p.run()
			first := p.touched("outbox_old")
			if first -= before; first < blocks {
				t.Errorf("the first look touched %d blocks of %d", first, blocks)
			}
			for range 5 {
				p.confirm()
				p.run()
			}
			if again := p.touched("outbox_old") - before - first; again > 15 { // a pass needs one row
				t.Errorf("five more passes touched %d blocks", again)
			}
			p.hinted("partition public.outbox_old stays")
			if c.ends != "" {
				p.exec(c.ends)
			} else {
				kept = kept[:len(kept)-1]
			}
			p.until("the partition goes", func() bool { return !slices.Contains(p.parts(), "outbox_old") })
		})
	}
}

// until passes until a condition holds.
func (p *place) until(why string, done func() bool) {
	p.Helper()
	for !done() {
		if p.ctx.Err() != nil {
			p.Fatalf("%s: %+v", why, p.Status())
		}
		p.confirm()
		p.run()
	}
}

// While no mark is confirmed, as when Kafka is down, a pass does not read the rows again that an earlier pass has looked at.
func TestRowsThatCannotGoAreReadOnceForEachMark(t *testing.T) {
	for _, c := range []struct {
		mode Mode
		time string
	}{{Delete, "timestamptz"}, {MoveToArchive, "timestamptz"}, {Delete, "timestamp"}} {
		t.Run(string(c.mode)+" by "+c.time, func(t *testing.T) {
			kept := []string{"1"}
			p := newPlace(t, "18", "CREATE TABLE outbox (id int, event int, created_at "+c.time+", filler text)",
				Settings{Config: Config{Mode: c.mode, Keep: time.Hour}, IDColumn: idColumn, Kept: func(context.Context) ([]string, error) { return kept, nil }})
			p.exec("CREATE TABLE outbox_archive (LIKE outbox)", "CREATE INDEX ON outbox (created_at)",
				"INSERT INTO outbox VALUES (1, 1, now() - interval '3 hours')", // delivered, and its event is dead
				"INSERT INTO outbox VALUES (2, 2, now() - interval '1 hour' + interval '1 second')")
			p.run()
			p.confirm()
			p.exec("INSERT INTO outbox SELECT n, n, now() - interval '2 hours', repeat('x', 900) FROM generate_series(3, 2000) n", "VACUUM ANALYZE outbox")
			rows := func() string { return p.value("SELECT count(*)::text FROM outbox") }
			for rows() != "1999" { // 2 becomes old enough, although no newer mark is confirmed
				if p.ctx.Err() != nil {
					t.Fatalf("%s rows: %+v", rows(), p.Status())
				}
				p.run()
			}
			first := p.touched("outbox")
			for range 5 {
				p.run()
			}
			if again := p.touched("outbox") - first; again > 100 {
				t.Errorf("five passes without a newer mark touched %d blocks", again)
			}
			kept = nil // the event is closed
			p.run()
			if got := rows(); got != "1998" {
				t.Errorf("%s rows are left", got)
			}
			p.settle()
			if got := rows(); got != "0" {
				t.Errorf("%s rows are left", got)
			}
		})
	}
}

// A batch that exceeds the timeout is said, and is not repeated in each pass.
func TestABatchThatTakesTooLongIsSaid(t *testing.T) {
	p := newPlace(t, "", plainTable, Settings{Config: Config{Mode: Delete}})
	p.exec("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''tries''); PERFORM pg_sleep(60); RETURN OLD; END'", "CREATE SEQUENCE tries",
		"CREATE TRIGGER slow BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION slow()", insert(1, "1 hour"))
	p.run()
	p.confirm()
	if err := p.own("SET statement_timeout = '2s'"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p.run()
	}
	p.hinted("takes longer than statement_timeout")
	if tries := p.value("SELECT last_value::text FROM tries"); tries != "1" {
		t.Errorf("it was tried %s times", tries)
	}
	p.exec("DROP TRIGGER slow ON outbox")
	clear(p.rests)
	p.run()
	p.want("the table is fast again")
}

// Where nothing tells which events are open, no mode removes anything: no row, and no partition, even if it was detached before.
func TestNothingIsRemovedWhileNothingTellsWhichEventsAreOpen(t *testing.T) {
	for _, mode := range []Mode{Delete, MoveToArchive, DropPartitions} {
		t.Run(string(mode), func(t *testing.T) {
			failure := errors.New("no brokers")
			p := newPlace(t, "", partitioned, Settings{Config: Config{Mode: mode, Keep: 48 * time.Hour}, IDColumn: idColumn, Kept: func(context.Context) ([]string, error) { return nil, failure }})
			p.exec(part("outbox_a", -6, -5), part("outbox_b", -5, -4), part("outbox_now", 0, 1), "CREATE TABLE archive (LIKE outbox)",
				"INSERT INTO outbox SELECT 1, date_trunc('day', now()) + '-6 days 2 hours'", "INSERT INTO outbox SELECT 2, date_trunc('day', now()) + '-5 days 2 hours'")
			p.cfg.ArchiveTable = "archive"
			left := []string{"outbox_a", "outbox_b", "outbox_now"}
			if mode == DropPartitions {
				p.exec("COMMENT ON TABLE outbox_a IS '"+remark+"public.outbox'", "ALTER TABLE outbox_a ADD CONSTRAINT "+closed+" CHECK (false) NOT VALID", "ALTER TABLE outbox DETACH PARTITION outbox_a")
			}
			p.run()
			for range 3 {
				p.confirm()
				if err := p.pass(p.ctx); !errors.Is(err, failure) || p.Status().Waiting == "" {
					t.Errorf("%v, %+v", err, p.Status())
				}
			}
			if got := p.parts(); !slices.Equal(got, left) || strings.Join(strings.Fields(p.query("SELECT id::text FROM outbox UNION SELECT id::text FROM outbox_a ORDER BY 1")), " ") != "1 2" {
				t.Errorf("left: %v and the rows %s", got, p.query("SELECT id::text FROM outbox"))
			}
			failure = nil
			p.until("everything old is removed", func() bool {
				return p.query("SELECT id::text FROM outbox") == "" && (mode != DropPartitions || slices.Equal(p.parts(), []string{"outbox_now"}))
			})
		})
	}
}
