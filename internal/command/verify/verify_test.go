package verify

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/fault"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/router"
)

// The relay has delivered everything: nothing is found, whatever else the topics have.
func TestNothingIsFoundWhereNothingIsWrong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "on")
	w.insert("a plain k 1", "b plain k 2", "c compact k 3")
	w.insert("d plain k 4", "e broker k 5", "f plain NULL 6")
	w.insert("gone plain k 7")
	w.send(w.records()...)
	w.send(&kgo.Record{Topic: w.prefix + "plain", Partition: 0, Value: []byte("of another program")})
	w.exec("DELETE FROM outbox WHERE id = 'gone'")
	r := w.verify()
	w.wants(r, 0)
	if r.Rows != 6 || r.Records != 8 || r.Matched != 6 || r.WithoutRow != 1 || r.NoEventID != 1 {
		t.Errorf("%+v", r)
	}
}

func TestALostRecordIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a plain k 1", "b plain k 2", "c plain l 3", "n plain NULL 4")
	w.insert("x nowhere k 5", "y NULL k 6", "NULL plain k 7")
	all := w.records()
	w.send(all[0], all[2])
	r := w.verify()
	w.wants(r, 0, "missing b -1", "missing n -1", "missing x -1", "unroutable y -1", "no_event_id  -1")
	for _, f := range r.Findings {
		if f.EventID == "b" && (f.Key == nil || *f.Key != "k" || f.Topic != w.prefix+"plain" || f.Partition < 0 || f.Table != "public.outbox") {
			t.Errorf("%+v", f)
		}
		if f.EventID == "y" && !strings.Contains(f.Detail, "aggregate_type") {
			t.Errorf("%+v", f)
		}
	}
}

// A first start with a bound leaves out older rows, so their records are not missing.
func TestARowBelowTheBoundIsLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a plain k 1", "b plain k 2", "x NULL k 3")
	server := w.pg.Value(t, w.dsn, "SELECT system_identifier::text FROM pg_control_system()")
	xid, err := strconv.ParseUint(w.pg.Value(t, w.dsn, "SELECT pg_current_xact_id()::text"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	w.insert("c plain k 4")
	w.send(w.records()[1])
	w.cfg.Bound = ipg.Bound{System: server, XID: xid}
	r := w.verify()
	w.wants(r, 0, "missing c -1")
	if r.LeftOut != 2 || r.Matched != 1 {
		t.Errorf("%+v", r)
	}
	w.cfg.Bound.System = "1"
	w.wants(w.verify(), 0, "missing a -1", "missing c -1", "unroutable x -1")
}

// Without commit times nothing tells how old a row is, so each row may be older than the log.
func TestRetentionAndCompactionMayHaveRemovedARecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a plain k 1", "b plain k 2", "c compact k 3", "d compact k 4", "e compact l 5")
	w.send(w.records()[1], w.records()[1], w.records()[3])
	w.trim("plain", 1)
	w.wants(w.verify(), 0, "retention a -1", "compaction c -1", "missing e -1")

	// The row is younger than what was removed.
	w.cfg.TimeColumn = "at"
	w.exec("UPDATE outbox SET at = now() + interval '1 hour' WHERE id = 'a'")
	w.wants(w.verify(), 0, "missing a -1", "compaction c -1", "missing e -1")
}

// What the log begins with now need not tell how old the removed records were.
func TestRetentionIsNotJudgedByWhatIsNoRelaysRecord(t *testing.T) {
	t.Parallel()
	old := func(r *kgo.Record) { r.Timestamp = time.Now().Add(-50 * 24 * time.Hour) }
	for name, c := range map[string]struct {
		send func(w *world, all []*kgo.Record)
	}{
		"the end of a transaction": {func(w *world, all []*kgo.Record) {
			tx := w.cluster.Client(w.T, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(w.prefix))
			if err := tx.BeginTransaction(); err != nil {
				w.Fatal(err)
			}
			if err := tx.ProduceSync(w.Context(), all[0]).FirstErr(); err != nil {
				w.Fatal(err)
			}
			if err := tx.EndTransaction(w.Context(), kgo.TryCommit); err != nil {
				w.Fatal(err)
			}
			w.send(all[1])
		}},
		"a record of a command": {func(w *world, all []*kgo.Record) {
			w.send(all[0], copyOf(all[1], old, header("walpost.origin", "snapshot")))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "off")
			w.cfg.TimeColumn = "at"
			w.insert("a plain k 1", "b plain k 2")
			w.exec("UPDATE outbox SET at = now() - interval '2 hours'")
			c.send(w, w.records())
			w.trim("plain", 1)
			r := w.verify(func(o *Options) { o.Since = time.Now().Add(-60 * 24 * time.Hour) })
			if w.wants(r, 0, "retention a -1"); r.Matched != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// The newest event of a key may have been a tombstone, which compaction removes as well.
func TestATombstoneLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "on")
	w.insert("a compact k 1", "b compact k NULL", "c compact l 3")
	w.wants(w.verify(), 0, "compaction a -1", "compaction b -1", "missing c -1")
}

func TestAChangedRecordIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "on")
	w.insert("a plain k 1", "b plain k 2", "c plain k 3")
	w.send(w.records()...)
	w.exec("UPDATE outbox SET payload = 'other' WHERE id = 'b'", "UPDATE outbox SET aggregate_id = 'l' WHERE id = 'c'")
	r := w.verify()
	w.wants(r, 0, "changed b 1", "changed c 2")
	for _, f := range r.Findings {
		if what := map[string]string{"b": "value", "c": "key"}[f.EventID]; f.Detail != "differs in its "+what || f.Partition != 1 {
			t.Errorf("%+v", f)
		}
	}
}

// Which duplicates a crash explains is a matter of their place.
func TestDuplicatesAreJudgedByTheirPlace(t *testing.T) {
	t.Parallel()
	whole := newWorld(t, "off")
	for name, c := range map[string]struct {
		sent     string // events by their digits; . is a record without a row
		trim     int64
		repeated int64
		found    []string
	}{
		"a stretch again":                   {"01234 234 56789", 0, 3, nil},
		"the newest one again":              {"0123456789 9", 0, 1, nil},
		"two crashes":                       {"0123 12 123 456789", 0, 5, nil},
		"everything again":                  {"0123456789 0123456789", 0, 10, nil},
		"one alone":                         {"01234 2 56789", 0, 0, []string{"duplicate 2 5"}},
		"with a hole":                       {"01234 24 56789", 0, 0, []string{"duplicate 2 5", "duplicate 4 6"}},
		"not finished":                      {"0123456789 5", 0, 0, []string{"duplicate_unknown 5 10"}},
		"in another order":                  {"01234 342 56789", 0, 0, []string{"duplicate 2 7", "duplicate 3 5", "duplicate 4 6"}},
		"twice, and once it is explained":   {"01234 1 5 45 6789", 0, 2, []string{"duplicate 1 5"}},
		"of records without a row":          {"01.2 .2 3456789", 0, 2, nil},
		"begun before the log does":         {"0123 123 456789", 2, 2, []string{}},
		"between others of another program": {"012-12-3456789", 0, 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := *whole
			w.T = t
			w.exec("TRUNCATE outbox")
			topic, rows := fmt.Sprint("topic", len(w.topics)), make([]string, 10)
			for i := range rows {
				rows[i] = fmt.Sprintf("%d %s k v", i, topic)
			}
			w.insert(rows...)
			all := w.records()
			for _, d := range c.sent {
				switch {
				case d == '.':
					w.send(copyOf(all[0], func(r *kgo.Record) { r.Headers = []kgo.RecordHeader{{Key: "id", Value: []byte("gone")}} }))
				case d == '-':
					w.send(&kgo.Record{Topic: all[0].Topic, Partition: 1})
				case d != ' ':
					w.send(copyOf(all[d-'0']))
				}
			}
			if c.trim > 0 {
				w.trim(topic, c.trim)
				c.found = append(c.found, "retention 0 -1")
			}
			w.wants(w.verify(), c.repeated, c.found...)
		})
	}
}

func TestADuplicateThatDiffersIsADifference(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a plain k 1", "b plain k 2", "c plain NULL 3", "d plain k 4")
	all := w.records()
	w.send(all...)
	other := func(r *kgo.Record) { r.Partition = 0 }
	w.send(copyOf(all[0], header("more", "x")), copyOf(all[1], header("walpost.origin", "replay")), copyOf(all[2], other), copyOf(all[3], other))
	r := w.verify()
	w.wants(r, 1, "duplicate a 4", "duplicate d 3") // of a, the copy is behind b, c and d
	if r.Marked != 1 {
		t.Errorf("%d duplicates are marked", r.Marked)
	}
}

func TestRecordsInTheWrongOrder(t *testing.T) {
	t.Parallel()
	worlds := map[string]*world{"on": newWorld(t, "on"), "off": newWorld(t, "off")}
	one := func(w *world, topic string) { w.insert("a "+topic+" k 1", "b "+topic+" k 2") }
	two := func(w *world, topic string) {
		w.insert("a " + topic + " k 1")
		w.insert("b " + topic + " k 2")
	}
	apart := func(w *world, topic string) {
		w.insert("a " + topic + " k 1")
		w.later()
		w.insert("b " + topic + " k 2")
	}
	for name, c := range map[string]struct {
		commits string
		write   func(w *world, topic string)
		topic   string        // "broker" for one with the brokers' times
		early   time.Duration // how much earlier the record of a is than that of b
		timed   bool          // the server keeps the times, and early counts all the same
		inOrder bool
		other   bool     // b is in another partition
		counted bool     // change waits until the server's statistics have both rows: later, they would come after the reset
		change  []string // SQL before verify
		found   []string
	}{
		"one transaction":                   {commits: "on", write: one, found: []string{"out_of_order a 1"}},
		"one transaction, no times":         {commits: "off", write: one, found: []string{"out_of_order a 1"}},
		"one transaction of two keys":       {commits: "on", write: func(w *world, topic string) { w.insert("a "+topic+" k 1", "b "+topic+" l 2") }},
		"two transactions far apart":        {commits: "off", write: two, early: 2 * time.Second, found: []string{"out_of_order a 1"}},
		"of one key in two partitions":      {commits: "off", write: two, early: 2 * time.Second, other: true},
		"two transactions, server's times":  {commits: "on", write: apart, topic: "broker", found: []string{"out_of_order a 1"}},
		"two transactions close together":   {commits: "off", write: two, early: 900 * time.Millisecond, found: []string{"order_unknown a 1"}},
		"two transactions, nothing known":   {commits: "off", write: two, topic: "broker", found: []string{"order_unknown a 1"}},
		"the column contradicts the times":  {commits: "off", write: two, early: -2 * time.Second, inOrder: true, found: []string{"order_unknown b 1"}},
		"the lower id commits last":         {commits: "off", write: two, early: -2 * time.Second},
		"updated since, by one transaction": {commits: "on", write: two, timed: true, early: 900 * time.Millisecond, change: []string{"UPDATE outbox SET at = now()"}, found: []string{"order_unknown a 1"}},
		"updated since, statistics reset": {
			commits: "on", write: two, timed: true, found: []string{"order_unknown a 1"}, counted: true,
			change: []string{"UPDATE outbox SET at = now()", "SELECT pg_stat_force_next_flush()", "SELECT pg_stat_reset_single_table_counters('outbox'::regclass)"},
		},
		"updated since, far apart":    {commits: "on", write: apart, change: []string{"UPDATE outbox SET at = now()"}, found: []string{"out_of_order a 1"}},
		"updated since, and no times": {commits: "off", write: two, change: []string{"UPDATE outbox SET at = now()"}, topic: "broker", found: []string{"order_unknown a 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := *worlds[c.commits]
			w.T = t
			w.exec("DROP TABLE outbox", outboxTable, "ALTER PUBLICATION walpost ADD TABLE outbox") // its statistics are as new, too
			topic := fmt.Sprint(cmp.Or(c.topic, "topic"), len(w.topics))
			c.write(&w, topic)
			all := w.records()
			if c.commits == "off" || c.timed { // the relay has the commit times, which the table does not have
				all[0].Timestamp = all[1].Timestamp.Add(-c.early)
			}
			if !c.inOrder {
				slices.Reverse(all)
			}
			if c.other {
				all[0].Partition = 0
			}
			w.send(all...)
			for until := time.Now().Add(time.Minute); c.counted && w.pg.Value(t, w.dsn, "SELECT n_tup_ins::text FROM pg_stat_user_tables WHERE relname = 'outbox'") != "2"; time.Sleep(50 * time.Millisecond) {
				if time.Now().After(until) {
					t.Fatal("the server has not counted the rows in a minute")
				}
			}
			w.exec(c.change...)
			w.wants(w.verify(), 0, c.found...)
		})
	}
}

// Rows without a record are judged only after the slot has passed them.
func TestASlotThatStandsStillIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a plain k 1", "b plain k 2")
	w.send(w.records()[0])
	w.runs = false
	r := w.verify(func(o *Options) { o.Wait = 300 * time.Millisecond })
	w.wants(r, 0, "not_confirmed b -1")
	if !strings.Contains(r.NotConfirmed, "no process reads the slot") || !strings.Contains(r.NotConfirmed, w.cfg.Slot) {
		t.Errorf("it says %q", r.NotConfirmed)
	}
	said := false
	w.wants(w.verify(func(o *Options) {
		o.Say = func(text string) {
			if strings.HasPrefix(text, "waiting until slot "+w.cfg.Slot+" has passed ") {
				said = true
				w.confirm()
			}
		}
	}), 0, "missing b -1")
	if !said {
		t.Error("verify does not say what it waits for")
	}
	w.cfg.Slot = "nobodys"
	if r := w.verify(); r.NotConfirmed != "slot nobodys does not exist" {
		t.Errorf("it says %q", r.NotConfirmed)
	}
}

// Records that arrive while verify reads a partition are behind the end that it asked for.
func TestRecordsThatArriveMeanwhileAreNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	large := func() string { // two do not fit into one fetch
		b := make([]byte, 350<<10)
		_, _ = rand.Read(b) // it never fails
		return hex.EncodeToString(b)
	}
	w.insert("a plain k "+large(), "b plain k "+large())
	all := w.records()
	w.send(all...)
	once := sync.OnceFunc(func() { w.send(&kgo.Record{Topic: all[0].Topic, Partition: 1}) })
	r := w.verify(func(o *Options) {
		o.Progress = func(step string, _, _ int64) {
			if step == "reading records" {
				once()
			}
		}
	})
	w.wants(r, 0)
	if r.Records != 2 {
		t.Errorf("%d records were read", r.Records)
	}
}

func TestOnlyTheRowsOfTheRangeAreCompared(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.cfg.TimeColumn = "at"
	w.insert("a plain k 1", "b plain k 2", "c plain k 3", "d plain k 4")
	w.exec("UPDATE outbox SET at = timestamptz '2026-01-01 00:00+00' + (seq - 1) * interval '1 hour'", "UPDATE outbox SET at = NULL WHERE id = 'd'")
	text := func(s string) *string { return &s }
	w.wants(w.verify(func(o *Options) { o.FirstID, o.LastID = text("b"), text("c") }), 0, "missing b -1", "missing c -1")
	w.wants(w.verify(func(o *Options) { o.Since = at(t, "2026-01-01T01:00:00Z") }), 0, "missing b -1", "missing c -1", "missing d -1")
	w.wants(w.verify(func(o *Options) { o.Until = at(t, "2026-01-01T01:00:00Z") }), 0, "missing a -1", "missing d -1")
	w.cfg.TimeColumn = ""
	if _, err := Run(t.Context(), w.cfg, Options{Since: at(t, "2026-01-01T01:00:00Z")}); !fault.Misconfigured(err) || !strings.Contains(fault.Hint(err), "source.time_column") {
		t.Errorf("a range that nothing tells: %v", err)
	}
	w.exec("ALTER TABLE outbox ALTER id TYPE bigint USING seq")
	if _, err := Run(t.Context(), w.cfg, Options{FirstID: text("no number")}); !fault.Misconfigured(err) {
		t.Errorf("an id that is none: %v", err)
	}
}

func TestTheRecordsOfTheRangeAreRead(t *testing.T) {
	t.Parallel()
	const since = "2026-01-01T08:00:00Z"
	older := func(text string) func(*kgo.Record) {
		return func(r *kgo.Record) { r.Timestamp = at(t, text) }
	}
	for name, c := range map[string]struct {
		commits string
		rows    []string // SQL: what is done to row a
		record  string   // the time of its record
	}{
		"no time":                          {"off", []string{"UPDATE outbox SET at = NULL"}, "2025-12-01T00:00:00Z"},
		"no zone":                          {"off", []string{"ALTER TABLE outbox ALTER at TYPE timestamp", "UPDATE outbox SET at = '2026-01-01 09:00'"}, "2026-01-01T00:00:00Z"},
		"updated since, and no statistics": {"on", []string{"UPDATE outbox SET at = '2025-12-01 00:00+00'", "SELECT pg_stat_force_next_flush()", "SELECT pg_stat_reset()"}, "2025-12-01T00:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.commits)
			w.cfg.TimeColumn = "at"
			w.insert("a plain k 1")
			w.exec(c.rows...)
			w.send(copyOf(w.records()[0], older(c.record)))
			r := w.verify(func(o *Options) { o.Since = at(t, since) })
			if w.wants(r, 0); r.Matched != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestRowsThatAreNotPublishedAreNotCompared(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a plain k 1", "b plain k 2")
	w.exec("ALTER PUBLICATION walpost SET TABLE outbox WHERE (payload <> '2')")
	w.send(w.records()...)
	if r := w.verify(); r.Rows != 1 || r.Matched != 1 || r.Differences() != 0 {
		t.Errorf("%+v", r)
	}
}

func TestAnEventThatIsElsewhereIsNotMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off", func(c *router.Config) { c.Tables = append(c.Tables, "public.Outbox") })
	w.insert("a plain k 1", "b plain k 2", "c NULL k 3")
	w.send(w.records()[0])
	w.cfg.Elsewhere = elsewhere(map[string]Place{
		"public.outbox a": {Name: "dropped"}, "public.outbox b": {Name: "dead letter", Open: true}, "public.outbox c": {Name: "dead letter", Open: true}, "other b": {Name: "parked", Open: true},
	})
	r := w.verify()
	w.wants(r, 0)
	if r.Elsewhere["dead letter"] != 2 || len(r.Elsewhere) != 1 {
		t.Errorf("%+v", r)
	}
	w.cfg.Elsewhere = elsewhere(map[string]Place{"public.outbox a": {Name: "dead letter", Open: true}})
	w.wants(w.verify(), 0, "in_both_places a 0", "missing b -1", "unroutable c -1")

	// A dead letter has the name of the table without quotes.
	w.exec(`ALTER TABLE outbox RENAME TO "Outbox"`)
	w.cfg.From.Names.Tables[0].Name = "Outbox"
	w.cfg.Elsewhere = elsewhere(map[string]Place{"public.Outbox b": {Name: "dead letter", Open: true}, "public.Outbox c": {Name: "dead letter", Open: true}})
	w.wants(w.verify(), 0)
}

// A command may deliver a dead letter while verify reads: the letter is closed then, and the record may be there or not yet.
func TestAnEventThatIsDeliveredMeanwhileIsInOnePlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a plain k 1", "b plain k 2")
	w.send(w.records()[0])
	looks := 0
	w.cfg.Elsewhere = func(context.Context) (func(table, id string) Place, error) {
		looks++
		open := looks == 1
		return func(_, id string) Place {
			if open {
				return Place{Name: "dead letter", Open: true}
			}
			return Place{}
		}, nil
	}
	r := w.verify()
	if w.wants(r, 0); r.Elsewhere["dead letter"] != 1 || r.Matched != 1 || looks != 2 {
		t.Errorf("%d looks: %+v", looks, r)
	}
}

// An id can be as long as any text.
func TestALongIDIsCompared(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a plain k 1", strings.Repeat("x", 100_000)+"a plain k 2", strings.Repeat("x", 100_000)+"b plain k 3")
	w.send(w.records()[:2]...)
	if r := w.verify(); r.Matched != 2 || r.Counts[Missing] != 1 || r.Differences() != 1 {
		t.Errorf("%+v", r.Counts)
	}
}

// Nothing tells which row without an id a dead letter without an id is of.
func TestADeadLetterWithoutAnIDIsOfNoRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("NULL plain k 1", "NULL NULL k 2")
	w.cfg.Elsewhere = elsewhere(map[string]Place{"public.outbox ": {Name: "dead letter", Open: true}})
	w.wants(w.verify(), 0, "no_event_id  -1", "no_event_id  -1")
}

// A topic may be made while verify waits for the slot.
func TestATopicThatIsMadeMeanwhileIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a nowhere k 1")
	w.runs = false
	r := w.verify(func(o *Options) {
		o.Say = func(text string) {
			if strings.HasPrefix(text, "waiting") {
				w.cluster.CreateTopic(t, w.prefix+"nowhere", 2, nil)
				w.send(w.records()...)
				w.confirm()
			}
		}
	})
	if w.wants(r, 0); r.Matched != 1 {
		t.Errorf("%+v", r)
	}
}

// Rows with one id are told apart by what their records have.
func TestTwoRowsMayHaveOneID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a plain k 1", "a plain k 2", "a broker k 3")
	all := w.records()
	w.send(all[1], all[0], all[2])
	w.cfg.OrderColumn = ""
	w.wants(w.verify(), 0)
	w.insert("a plain k 4")
	w.wants(w.verify(), 0, "missing a -1")
}

// A row that was updated may be older than its transaction says.
func TestARowThatIsYoungerThanTheLogIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "on")
	w.insert("a plain k 1", "b plain l 2")
	b := copyOf(w.records()[1], func(r *kgo.Record) { r.Timestamp = r.Timestamp.Add(-time.Hour) })
	w.send(b, b)
	w.trim("plain", 1)
	w.wants(w.verify(), 0, "missing a -1")
	w.exec("UPDATE outbox SET at = now()")
	w.wants(w.verify(), 0, "retention a -1")
}

// What retention removed before the range of times does not matter.
func TestARangeOfTimesIsJudgedByItsOwnRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.cfg.TimeColumn = "at"
	w.insert("a plain k 1", "b plain k 2")
	w.exec("UPDATE outbox SET at = now()")
	b := w.records()[1]
	old := copyOf(b, func(r *kgo.Record) { r.Timestamp = time.Now().Add(-2 * time.Hour) })
	w.send(old, old, copyOf(b, func(r *kgo.Record) { r.Timestamp = time.Now().Add(-5 * time.Minute) }))
	w.trim("plain", 1)
	w.wants(w.verify(func(o *Options) { o.Since = time.Now().Add(-time.Hour) }), 0, "missing a -1")
}

// What the options put into the records, verify finds there again.
func TestEveryKindOfRecordIsRecognised(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]func(*router.Config){
		"JSON headers":      func(c *router.Config) { c.Header = router.Converter{Name: "json"} },
		"a tombstone":       func(c *router.Config) { c.Tombstone = true },
		"an envelope":       func(c *router.Config) { c.AdditionalPlacement = "seq:envelope,seq:header:n"; c.Value.Name = "json" },
		"a timestamp":       func(c *router.Config) { c.Timestamp = "at" },
		"a changing header": func(c *router.Config) { c.ExtendedHeaders, c.TopicPrefix = true, "shop" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "off", option)
			w.insert("a plain k {}", "b plain k NULL", "c plain l {}")
			w.exec("UPDATE outbox SET at = '2026-01-01 00:00:00.5+00' WHERE id <> 'c'")
			w.cfg.Router.SetRunID("the relay's")
			all := w.records()
			w.send(all[0], all[1])
			w.cfg.Router.SetRunID("verify's own")
			r := w.verify()
			if w.wants(r, 0, "missing c -1"); r.Matched != 2 {
				t.Errorf("%+v", r)
			}
			if name == "a timestamp" {
				w.exec("UPDATE outbox SET at = at + interval '1 second' WHERE id = 'a'")
				w.wants(w.verify(), 0, "missing c -1", "changed a 0")
			}
		})
	}
}

func TestTheRowsOfPartitionsAreCompared(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.exec("DROP TABLE outbox", strings.Replace(strings.Replace(outboxTable, " GENERATED ALWAYS AS IDENTITY", "", 1), "at timestamptz)", "at timestamptz) PARTITION BY LIST (aggregate_id)", 1),
		"CREATE TABLE outbox_k PARTITION OF outbox FOR VALUES IN ('k')", "CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT",
		"ALTER PUBLICATION walpost ADD TABLE outbox", "ALTER PUBLICATION walpost SET (publish_via_partition_root = true)")
	w.insert("a plain k 1", "b plain l 2", "c plain k 3")
	w.exec("UPDATE outbox SET seq = CASE id WHEN 'a' THEN 1 WHEN 'b' THEN 2 ELSE 3 END")
	all := w.records()
	w.send(all[2], all[0])
	// An INSERT of several rows writes each partition by itself, so seq is not certain.
	w.wants(w.verify(), 0, "missing b -1", "order_unknown a 1")
}

func TestAnUnfinishedSnapshotIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a plain k 1")
	w.cfg.Unfinished = func(context.Context) (string, error) { return "the snapshot is not finished", nil }
	if r := w.verify(); r.Counts[NotConfirmed] != 1 || r.NotConfirmed != "the snapshot is not finished" {
		t.Errorf("%+v", r)
	}
}

// Another producer's transaction stays open. The records behind its first one can't be read, so nothing tells whether they are there.
func TestWhatAnOpenTransactionHidesIsNotMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "off")
	w.insert("a plain k 1", "b plain k 2")
	all := w.records()
	w.send(all[0])
	other := w.cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(w.cfg.Slot), kgo.TransactionTimeout(10*time.Minute))
	if err := other.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := other.ProduceSync(t.Context(), &kgo.Record{Topic: all[0].Topic, Partition: 1}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	w.send(all[1])
	r := w.verify()
	w.wants(r, 0, "not_confirmed b -1")
	if !strings.Contains(r.NotConfirmed, "a transaction is open at offset 1") {
		t.Errorf("it says %q", r.NotConfirmed)
	}
	if err := other.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	w.wants(w.verify(), 0)
}
