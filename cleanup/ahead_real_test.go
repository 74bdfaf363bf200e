package cleanup

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/doctest"
)

// hinted fails unless a hint of the newest pass has these words.
func (p *place) hinted(words string) {
	p.Helper()
	if err := p.look(p.ctx); err != nil { // reports the hints of the pass
		p.Fatal(err)
	}
	if !strings.Contains(strings.Join(p.Status().Hints, "\n"), words) {
		p.Errorf("no hint has %q: %q", words, p.Status().Hints)
	}
}

// dropsOld fails unless a pass drops outbox_old after everything is confirmed.
func (p *place) dropsOld() {
	p.Helper()
	p.confirm()
	p.run()
	if got := p.parts(); slices.Contains(got, "outbox_old") {
		p.Errorf("the old partition stays: %v (%+v)", got, p.Status())
	}
}

func (p *place) made() int {
	p.Helper()
	return len(strings.Fields(p.query("SELECT relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE inhparent = 'outbox'::regclass AND relname LIKE 'outbox\\_p2_______'")))
}

// giveBounds is the SQL of docs/cleanup.md that turns a default partition into one with bounds.
func giveBounds(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/cleanup.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := doctest.Parse("docs/cleanup.md", string(text)).Blocks
	at := slices.IndexFunc(blocks, func(b doctest.Block) bool { return strings.Contains(b.Text, "DETACH PARTITION") })
	if at < 0 {
		t.Fatal("docs/cleanup.md has no such SQL")
	}
	return blocks[at].Text
}

// The relay was down until the newest partition ended, so that today's rows are in the default partition.
func TestRowsOfADefaultPartitionStopNeitherNewPartitionsNorTheRemoval(t *testing.T) {
	eachVersion(t, oldestAndNewest, func(t *testing.T, version string) {
		p := newPlace(t, version, partitioned, Settings{Config: Config{Mode: DropPartitions, Keep: 48 * time.Hour}})
		p.exec("CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT", part("outbox_old", -5, -4),
			"INSERT INTO outbox SELECT 1, date_trunc('day', now()) + '-5 days 1 hour'", insert(2, "0"))
		p.run()
		p.hinted("outbox_p" + time.Now().UTC().Format("20060102") + " is not created, because the default partition public.outbox_rest has rows")
		if n := p.made(); n != 3 {
			t.Errorf("%d partitions were made, must be 3: one for each day after today", n)
		}
		p.dropsOld()
		p.hinted("default partition public.outbox_rest has rows, which the cleanup never removes")

		// If Postgres needs long to look for rows in the default partition, writers must not wait for each pass.
		const slow = "is not created, because Postgres needs more than 1ms to look for its rows in the default partition public.outbox_rest"
		p.limit = time.Millisecond
		p.exec("DROP TABLE outbox_p"+time.Now().UTC().AddDate(0, 0, 3).Format("20060102"), "INSERT INTO outbox SELECT n, now() FROM generate_series(1000, 200000) n")
		p.run()
		p.hinted(slow)
		p.limit = time.Hour
		p.Cleaner.drop() // a lost session makes it no faster
		p.run()
		p.hinted(slow)
		if n := p.made(); n != 2 {
			t.Errorf("%d partitions, must be 2: there was no second attempt", n)
		}
		clear(p.rests)
		p.run()
		if n := p.made(); n != 3 {
			t.Errorf("%d partitions, must be 3: the one that was dropped, too", n)
		}
		p.exec("DELETE FROM outbox WHERE id >= 1000")

		// The SQL of docs/cleanup.md gives the default partition bounds, and publishes no row again.
		p.exec("SELECT pg_create_logical_replication_slot('"+p.slot+"_b', 'test_decoding')",
			strings.NewReplacer("sales.", "public.", "2026-11-20", time.Now().UTC().AddDate(0, 0, -1).Format(time.DateOnly), "2026-11-24", time.Now().UTC().AddDate(0, 0, 1).Format(time.DateOnly)).
				Replace(giveBounds(t)))
		var again int
		if err := p.sql.QueryRow(p.ctx, "SELECT count(*) FROM pg_logical_slot_get_changes('"+p.slot+"_b', NULL, NULL) WHERE data LIKE 'table %'").Scan(&again); err != nil || again > 0 {
			t.Errorf("%d rows were published again (%v)", again, err)
		}
		p.exec("SELECT pg_drop_replication_slot('" + p.slot + "_b')")
		p.run()
		p.run()
		p.want("the row of the default partition", 2)
		if h := p.Status().Hints; len(h) > 0 {
			t.Errorf("the default partition is empty now: %q", h)
		}
	})
}

func TestAPartitionWithoutAnEndStopsNothing(t *testing.T) {
	for bounds, made := range map[string]int{"FROM ('2020-01-01') TO (MAXVALUE)": 0, "FROM (MINVALUE) TO ('2020-01-01')": 4} {
		t.Run(bounds, func(t *testing.T) {
			p := newPlace(t, "", partitioned, Settings{Config: Config{Mode: DropPartitions, Keep: 48 * time.Hour}})
			old := "FOR VALUES FROM ('2019-01-01') TO ('2020-01-01')"
			if made > 0 {
				old = "FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')"
			}
			p.exec("CREATE TABLE outbox_rest PARTITION OF outbox FOR VALUES "+bounds, "CREATE TABLE outbox_old PARTITION OF outbox "+old)
			p.run()
			if n := p.made(); n != made {
				t.Errorf("%d partitions were made, must be %d", n, made)
			}
			p.dropsOld()
			p.hinted("partition public.outbox_rest has no lower or no upper bound, so the cleanup never drops it")
		})
	}
}

// A failure to create partitions is an error, because INSERTs will fail. It does not keep old rows.
func TestPartitionsThatCannotBeMadeDoNotStopTheRemoval(t *testing.T) {
	p := newPlace(t, "", partitioned, Settings{Config: Config{Mode: DropPartitions, Keep: 48 * time.Hour}, Every: time.Millisecond})
	p.exec(part("outbox_old", -5, -4), "CREATE TABLE outbox_p"+time.Now().UTC().Format("20060102")+" ()")
	ctx, cancel := context.WithCancel(p.ctx)
	ended := make(chan struct{})
	go func() { p.Cleaner.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	for deadline := time.Now().Add(time.Minute); p.Status().Partitions == 0 || p.Status().Err == ""; { // a pass counts what it drops before it says what failed
		p.confirm()
		if time.Now().After(deadline) {
			t.Fatalf("the old partition stays, or no error is shown: %+v", p.Status())
		}
	}
	if err := p.Status().Err; !strings.Contains(err, fmt.Sprintf("create partition public.outbox_p%s", time.Now().UTC().Format("20060102"))) {
		t.Errorf("the error is %q", err)
	}
}
