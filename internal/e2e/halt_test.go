package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// A dropped slot is held by a walsender that comes back at once: both statements are repeated until it is gone.
const dropActiveSlot = `DO $$ BEGIN FOR i IN 1..500 LOOP BEGIN
	PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '%[1]s' AND active;
	PERFORM pg_drop_replication_slot('%[1]s'); RETURN;
	EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.002); END; END LOOP; RAISE 'the slot is always in use'; END $$`

const dropIdleSlot = "SELECT pg_drop_replication_slot('%[1]s')"

func TestWhatIsTakenAwayWhileRunningIsNoticed(t *testing.T) {
	t.Parallel()
	takeAway := []struct {
		name, sql, reason string
		rows              bool     // are written afterwards, so that the stream itself meets it
		mend              []string // what the hint says to do before recover
	}{
		{name: "the slot", sql: dropActiveSlot, reason: "does not exist"},
		{name: "the publication", sql: "DROP PUBLICATION walpost", reason: "publication walpost", mend: []string{dropIdleSlot}},
		{name: "the publication, and rows come", sql: "DROP PUBLICATION walpost", reason: "publication", rows: true, mend: []string{dropIdleSlot}},
		{
			name: "the table out of the publication", sql: "ALTER PUBLICATION walpost DROP TABLE outbox", reason: "publication walpost does not contain table public.outbox", rows: true,
			mend: []string{`ALTER PUBLICATION "walpost" ADD TABLE "public"."outbox"`}, // the slot is kept
		},
	}
	for _, version := range []string{"15", "18"} {
		for _, c := range takeAway {
			t.Run(version+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				kafka := testenv.Kafka(t)
				pg := testenv.Postgres(t, version)
				slot := strings.ReplaceAll(unique("halt"), "-", "_")
				w := worldIn(t, kafka, pg, pg.Database(t), slot)
				r := w.start("--slot", slot)
				eventually(t, 60*time.Second, "ready", r.ready)
				w.arrive(w.insert(10))
				w.exec(strings.ReplaceAll(c.sql, "%[1]s", slot))
				var missing []string
				if c.rows {
					missing = w.insert(10)
				}
				hinted := func(log string) {
					t.Helper()
					for _, word := range append([]string{"run walpost recover --config "}, c.mend...) {
						word = strings.ReplaceAll(word, "%[1]s", slot)
						if hint := hintOf(log); !strings.Contains(strings.ToLower(hint), strings.ToLower(word)) {
							t.Errorf("the hint does not say %s: %s", word, hint)
						}
					}
				}
				_, log := w.halted(r, "", c.reason)
				hinted(log)
				// It stays refused, and nothing is made that was taken away.
				before := w.slotState()
				_, log = w.halted(w.start("--slot", slot), before)
				hinted(log)
				if c.sql == dropActiveSlot && !strings.HasPrefix(before, "no slot") {
					t.Errorf("a new slot: %s", before)
				}
				w.extra = strings.Replace(halting, "10m", "0s", 1)
				if code := w.start("--slot", slot).wait(30 * time.Second); code != 3 {
					t.Errorf("exit code %d with halt_linger: 0s", code)
				}
				if after := w.slotState(); before != after {
					t.Errorf("what was there changed from %q to %q", before, after)
				}
				if version == "15" {
					return
				}
				// Done as it was hinted, all arrives.
				missing = append(missing, w.insert(10)...)
				for _, sql := range c.mend {
					w.exec(strings.ReplaceAll(sql, "%[1]s", slot))
				}
				if code, out := w.command("recover", "--yes", "--unordered", "--slot", slot); code != 0 || !strings.Contains(out, "recovered: ") {
					t.Errorf("recover: code %d\n%s", code, out)
				}
				w.start("--slot", slot)
				w.arrive(append(missing, w.insert(10)...))
			})
		}
	}
}

// hintOf is what the log of a halt says to do.
func hintOf(log string) string {
	for line := range strings.Lines(log) {
		var l struct{ Message, Hint string }
		if json.Unmarshal([]byte(line), &l) == nil && strings.HasPrefix(l.Message, "halted: ") {
			return l.Hint
		}
	}
	return ""
}

// A record is ahead of the slot after each of these, and that is no gap.
func TestAKillBetweenCheckpointAndConfirmIsNoGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "15")
	for range 10 {
		r := w.startReady()
		rows := w.insert(20)
		w.arrive(rows[:1+rand.IntN(20)])
		time.Sleep(rand.N(30 * time.Millisecond)) // somewhere around the checkpoint: any moment must do
		r.kill()
	}
	r := w.startReady()
	w.arrive(w.insert(10))
	w.stopCleanly(r)

	// Postgres forgets the slot's newest position when it crashes, because it keeps it in memory. It writes it down at its own checkpoints,
	// and when a confirmation passes one of the records that its background writer logs every 15 seconds.
	again, back := 0, false
	for try := 0; try < 5 && !back; try++ {
		w.exec("CHECKPOINT")
		r = w.startReady()
		w.arrive(w.insert(1000))
		w.confirms(w.now())
		ahead := w.confirmed()
		again = w.again()
		if err := w.pg.Stop("immediate", time.Minute); err != nil {
			t.Fatal(err)
		}
		r.kill()
		w.pg.Start(t)
		back = w.pg.Value(t, w.dsn, "SELECT confirmed_flush_lsn < $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = 'walpost'", ahead) == "true"
	}
	if !back {
		t.Fatal("the slot never went back: this test shows nothing")
	}
	r = w.startReady()
	w.arrive(w.insert(10))
	w.stopCleanly(r)
	if n := w.again() - again; n > 0 {
		t.Errorf("%d events came again, although the checkpoint knew of them", n)
	}
}

// A status is what these tests read of /api/status.
type status struct {
	State, Reason string
	Ready         bool
	Epoch         uint64
	Halt          struct{ Token string }
}

func (r *relay) view() (v status) {
	_, body := r.get("/api/status")
	_ = json.Unmarshal([]byte(body), &v) // nobody answered: the zero value is not what anybody waits for
	return v
}

func TestAnEventThatCannotBeRoutedHalts(t *testing.T) {
	t.Parallel()
	for name, typ := range map[string]string{"no aggregate type": "NULL", "a topic name with a space": "'two words'"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kafka := testenv.Kafka(t)
			pg := testenv.Postgres(t, "15")
			slot := strings.ReplaceAll(unique("poison"), "-", "_")
			w := worldIn(t, kafka, pg, pg.Database(t), slot)
			w.exec("ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL")
			r := w.start("--slot", slot)
			eventually(t, 60*time.Second, "ready", r.ready)
			before := w.insert(20)
			// The second of three rows of one transaction.
			three := strings.Fields(pg.Value(t, w.dsn, "WITH r AS (INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'k1', 'made', '{}'), ("+
				typ+", 'k1', 'made', '{}'), ('order', 'k1', 'made', '{}') RETURNING id) SELECT string_agg(id::text, ' ') FROM r"))
			bad := three[1]
			before = append(before, three[0])
			beyond := pg.Value(t, w.dsn, "SELECT pg_current_wal_lsn()::text")
			after := w.insert(20)
			reason, _ := w.halted(r, "", bad, "public.outbox", " in transaction 0/")
			reason, _, _ = strings.Cut(strings.TrimSpace(reason), "; events that still wait") // it may have been asked before they were delivered
			if strings.Count(reason, bad) != 1 || strings.Count(reason, "public.outbox") != 1 || strings.Count(reason, "cannot be routed") != 1 {
				t.Errorf("the reason says a thing twice: %s", reason)
			}
			w.arrive(before)
			// The row can not be taken out of the WAL: deleting it changes nothing.
			w.exec("DELETE FROM outbox WHERE id = '" + bad + "'")
			again, log := w.halted(w.start("--slot", slot), "", bad, "public.outbox")
			if strings.TrimSpace(again) != reason {
				t.Errorf("the restart halts by %q, and it was %q", again, reason)
			}
			if n := w.arrived(append(after, bad)); n > 0 {
				t.Errorf("%d events from the halting one on arrived", n)
			}
			if n := w.again(); n > 0 {
				t.Errorf("%d events came again", n)
			}
			if ok := pg.Value(t, w.dsn, "SELECT confirmed_flush_lsn < $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2", beyond, slot); ok != "true" {
				t.Errorf("the slot stands at %s, and the event is before %s", w.confirmed(), beyond)
			}
			if hint := hintOf(log); strings.Contains(hint, "SELECT") || !strings.Contains(hint, "An UPDATE or DELETE of the row changes nothing") {
				t.Errorf("the hint: %s", hint)
			}
			token := skipInHint.FindStringSubmatch(hintOf(log))
			if token == nil {
				t.Fatalf("no token: %s", hintOf(log))
			}
			for _, wrong := range []string{"0-1-1-00000000", token[1] + "0"} {
				if code, out := w.command("skip", wrong, "--slot", slot); code != 2 || !strings.Contains(out, token[1]+": event "+bad) {
					t.Errorf("skip %s: code %d\n%s", wrong, code, out)
				}
			}
			for range 2 { // once more does no harm
				if code, out := w.command("skip", token[1], "--slot", slot); code != 0 || !strings.Contains(out, "skips event "+bad+" of public.outbox in transaction 0/") {
					t.Errorf("skip: code %d\n%s", code, out)
				}
			}
			r = w.start("--slot", slot)
			after = append(after, three[2])
			w.arrive(after)
			w.arrive(w.insert(5))
			if n := w.arrived([]string{bad}) + w.again(); n > 0 {
				t.Errorf("the halting event, or others again: %d", n)
			}
			w.stopCleanly(r)
			if log := r.log.String(); !strings.Contains(log, "EVENT SKIPPED") || !strings.Contains(log, bad) {
				t.Errorf("the log: %s", log)
			}
			if code, out := w.command("skip", token[1], "--slot", slot); code != 2 {
				t.Errorf("skip of what is passed over: code %d\n%s", code, out)
			}
		})
	}
}

var skipInHint = regexp.MustCompile(`walpost skip ([0-9A-Fa-f-]+)`)

// A good event waits for its missing topic, and the next one cannot be routed. Whatever happens during the halt, the good event is delivered.
func TestAGoodEventIsDeliveredDuringAHalt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"and confirmed", "and Postgres stops"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stops := name == "and Postgres stops"
			w := newWorld(t, "15", testenv.Param("wal_sender_timeout", "10s"))
			w.extra = "halt_linger: forever\nshutdown_grace: 2m\nmonitor: {interval: 1s}\n"
			w.exec("ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL")
			r := w.startReady()
			w.arrive(w.insert(1))
			write := func(typ string) string {
				return w.pg.Value(t, w.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ("+typ+", 'k1', 'made', '{}') RETURNING id::text")
			}
			good := write("'late'")
			bad := write("NULL")
			topic := w.prefix + "late"
			eventually(t, 30*time.Second, "halted, and it says who waits for what", func() bool {
				v := r.view()
				return v.State == "halted" && strings.Contains(v.Reason, bad) && strings.Contains(v.Reason, "1 for topic "+topic)
			})
			if !strings.Contains(r.log.String(), `"linger":"forever"`) {
				t.Errorf("halt_linger is no word: %s", r.log)
			}
			before := w.confirmed()
			if stops {
				if err := w.pg.Stop("fast", patience); err != nil {
					t.Errorf("pg_ctl stop -m fast during a halt: %v", err)
				}
			} else {
				time.Sleep(15 * time.Second) // more than wal_sender_timeout: the session must live
				if active := w.pg.Value(t, w.dsn, "SELECT active::text FROM pg_replication_slots"); active != "true" {
					t.Error("the session was lost during the halt")
				}
			}
			testenv.Kafka(t).CreateTopic(t, topic, 1, nil)
			w.also(topic)
			w.arrive([]string{good})
			eventually(t, 60*time.Second, "the good event is delivered, and nothing is left", func() bool {
				_, body := r.get("/readyz")
				return strings.Contains(body, bad) && !strings.Contains(body, "wait")
			})
			if !stops {
				eventually(t, 30*time.Second, "confirmed", func() bool { return w.confirmed() != before })
			}
			if code := r.stop(); code != 3 {
				t.Errorf("exit code %d", code)
			}
			if stops {
				w.pg.Start(t)
			}
			w.extra = halting
			w.halted(w.start(), "", bad)
			if n := w.again(); n > 0 {
				t.Errorf("%d events came again", n)
			}
		})
	}
}

// goesOnExactly starts a relay once more, which must know of everything that was delivered.
func (w *world) goesOnExactly(epoch uint64) {
	w.t.Helper()
	again := w.again()
	r := w.startReady()
	if got := r.view().Epoch; got <= epoch {
		w.t.Errorf("epoch %d after %d", got, epoch)
	}
	w.arrive(w.insert(10))
	w.stopCleanly(r)
	if n := w.again() - again; n > 0 {
		w.t.Errorf("%d events came again after a clean stop", n)
	}
}

func TestTheFileStoreFromStartToGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "15")
	path := filepath.Join(t.TempDir(), "position")
	w.extra += fmt.Sprintf("checkpoint: {store: file, path: %q}\n", path)
	first := w.startReady()
	w.arrive(w.insert(10))
	second := w.start()
	eventually(t, 30*time.Second, "the second waits", func() bool {
		_, body := second.get("/readyz")
		return strings.Contains(body, "is used by another process")
	})
	first.kill()
	eventually(t, 20*time.Second, "the second takes over", second.ready)
	w.arrive(w.insert(10))
	epoch := second.view().Epoch
	w.stopCleanly(second)
	w.goesOnExactly(epoch)

	// A file that cannot be read is no file that says nothing: waited out or not, nothing is started from somewhere else.
	before := w.slotState()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	r := w.start()
	eventually(t, 30*time.Second, "the torn file is named", func() bool { return strings.Contains(r.log.String(), path) || r.ended() })
	if r.ready() {
		t.Error("ready by a torn checkpoint")
	}
	r.kill()
	if after := w.slotState(); after != before {
		t.Errorf("a torn checkpoint: what was there changed from %q to %q", before, after)
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	w.exec(dropSlot)
	token := w.refused([]string{`slot "walpost" does not exist`})
	w.startReady("--accept-gap=" + token)
	w.arrive(w.insert(10))
}
