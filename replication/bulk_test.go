package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/replication/internal/pgoutput"
)

// A tape is what a reader got, transaction by transaction.
type tape struct {
	w    *world
	src  *Source
	done []string // the finished transactions, each as the text of its events
	open []string // the events of the unfinished one
	safe cdc.Position
	why  []string // sessions ended
}

// read reads until a transaction has a row with the key, over as many sessions as it takes. each is called before every Next.
func (p *tape) read(key string, each func(s *Session)) {
	p.w.Helper()
	ctx, cancel := context.WithTimeout(p.w.Context(), 2*time.Minute)
	defer cancel()
	for {
		s := p.w.mustOpen(p.src, true)
		at := max(p.safe, s.Identity().SlotFound.Confirmed)
		err := s.Start(ctx, at)
		for due := time.Now(); err == nil; {
			if each != nil {
				each(s)
			}
			var ev *cdc.Event
			if ev, err = s.Next(ctx, 20*time.Millisecond); err != nil {
				break
			}
			if p.take(ev) && strings.Contains(p.done[len(p.done)-1], key) {
				p.w.close(s)
				return
			}
			if now := time.Now(); now.After(due) {
				due = now.Add(s.StatusEvery() / 4)
				err = s.Confirm(ctx, p.safe)
			}
		}
		p.open = nil
		if !fault.Retryable(err) {
			p.w.Fatalf("after %d transactions: %v", len(p.done), err)
		}
		p.why = append(p.why, err.Error())
		p.w.close(s)
	}
}

// until is read in one session that confirms nothing.
func (p *tape) until(key string) {
	p.w.Helper()
	s := p.w.stream(0)
	defer p.w.close(s)
	p.on(s, key)
}

// on reads on in s.
func (p *tape) on(s *Session, key string) {
	p.w.Helper()
	ctx, cancel := context.WithTimeout(p.w.Context(), time.Minute)
	defer cancel()
	for {
		ev, err := s.Next(ctx, time.Second)
		if err != nil {
			p.w.Fatal(err)
		}
		if p.take(ev) && strings.Contains(p.done[len(p.done)-1], key) {
			return
		}
	}
}

// take reports whether ev ends a transaction.
func (p *tape) take(ev *cdc.Event) bool {
	switch ev.Kind {
	case cdc.Idle:
		if len(p.open) > 0 {
			if ev.Pos > 0 {
				p.w.Errorf("an idle position within a transaction: %s", ev.Pos)
			}
			return false
		}
		p.safe = max(p.safe, ev.Pos)
		return false
	case cdc.Begin:
		p.open = nil
	default:
	}
	text := fmt.Sprintf("%v pos=%s lsn=%s at=%d", ev.Kind, ev.Pos, ev.LSN, ev.Time.UnixMicro())
	for _, row := range []*cdc.Row{&ev.Row, &ev.Old} {
		if row.Relation != nil {
			text += fmt.Sprintf(" %+v", *row.Relation)
			for _, v := range row.Values {
				text += fmt.Sprintf(" %q/%t/%t", v.Bytes, v.Bytes == nil, v.Unchanged)
			}
		}
	}
	p.open = append(p.open, text)
	if ev.Kind != cdc.Commit {
		return false
	}
	if ev.Pos <= p.safe {
		p.w.Errorf("a transaction that ends at %s comes after the position %s", ev.Pos, p.safe)
	}
	p.done, p.open, p.safe = append(p.done, strings.Join(p.open, "\n")), nil, ev.Pos
	return true
}

func (w *world) tape(catchUp string) *tape {
	w.cfg.BulkCatchUp = catchUp
	return &tape{w: w, src: w.source()}
}

func (p *tape) compare(with *tape) {
	p.w.Helper()
	for i := range max(len(p.done), len(with.done)) {
		var a, b string
		if i < len(p.done) {
			a = p.done[i]
		}
		if i < len(with.done) {
			b = with.done[i]
		}
		if a != b {
			p.w.Fatalf("transaction %d of %d and %d differs:\n%.2000s\n\nby the stream:\n%.2000s", i, len(p.done), len(with.done), a, b)
		}
	}
}

// busy writes a bit of everything that makes WAL, some MB, and last a row with the key.
func (w *world) busy(key string) {
	w.Helper()
	first, second := testenv.Conn(w.T, w.dsn), testenv.Conn(w.T, w.dsn)
	const rows = `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
 SELECT 't', n::text, 'e', jsonb_build_object('pad', (SELECT string_agg(md5((n + g)::text), '') FROM generate_series(1, 10) g)) FROM generate_series(1, %d) n`
	testenv.Run(w.T, first, "BEGIN", insertOf("first, long"))
	for n := range 12 {
		testenv.Run(w.T, second, fmt.Sprintf("DO $$ BEGIN FOR n IN 1..60 LOOP %s; COMMIT; END LOOP; END $$", insertOf(fmt.Sprint("single ", n))),
			fmt.Sprintf(rows, 300), "INSERT INTO busy SELECT repeat('x', 100) FROM generate_series(1, 2000)",
			"BEGIN", insertOf("kept"), "SAVEPOINT a", insertOf("undone"), "ROLLBACK TO SAVEPOINT a", insertOf("kept, too"), "COMMIT",
			"BEGIN", insertOf("undone"), "ROLLBACK", "UPDATE outbox SET event_type = 'y' WHERE aggregate_id = 'kept'", "UPDATE outbox SET id = gen_random_uuid() WHERE aggregate_id = 'kept'",
			fmt.Sprintf("SELECT pg_logical_emit_message(%t, 'any', 'message')", n%2 == 0))
		switch n {
		case 4:
			testenv.Run(w.T, first, "COMMIT", "ALTER TABLE outbox ADD COLUMN more text DEFAULT 'x'", "BEGIN", insertOf("second, long"))
		case 8:
			testenv.Run(w.T, first, "COMMIT", "CHECKPOINT")
		}
	}
	w.exec(insertOf(key))
}

// What is read in bulk is what the stream gives, byte for byte, with the same positions, over several segments and on to the stream.
func TestReadingInBulkGivesWhatTheStreamGives(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable, "CREATE TABLE busy (v text)")
		w.cfg.Publish = []string{"insert", "update"}
		w.close(w.stream(0)) // makes the slot
		w.busy("last")
		stream := w.tape("never")
		stream.until(`"last"`)
		p := w.tape("256KiB")
		p.src.catchUp.most = 100_003 // the switch is anywhere, also within a record
		inBulk, before := 0, 0
		p.read(`"last"`, func(s *Session) {
			if s.bulk != nil {
				inBulk++
			}
			if before++; before%500 == 0 {
				if got := w.slot(fmt.Sprintf("confirmed_flush_lsn <= '%s' AND active", p.safe)); got != "true" {
					t.Errorf("the slot is beyond %s, or free", p.safe)
				}
			}
		})
		p.compare(stream)
		if inBulk == 0 {
			t.Error("nothing was read in bulk")
		}
		if len(p.why) < 2 {
			t.Errorf("%d sessions: too few for several segments", len(p.why)+1)
		}
		for _, why := range p.why {
			if !strings.Contains(why, cdc.ErrReopen.Error()) {
				t.Errorf("a session ended with: %s", why)
			}
		}
		t.Log(len(p.done), "transactions,", inBulk, "of", before, "reads in bulk; sessions:", strings.Join(p.why, "; "))
		w.noCopies()
	})
}

// noCopies waits until no copy of a slot is left: they go with their connections.
func (w *world) noCopies() {
	w.Helper()
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := w.value("SELECT count(*)::text FROM pg_replication_slots WHERE database = current_database() AND temporary")
		if left == "0" {
			return
		}
		if time.Now().After(until) {
			w.Fatalf("%s copies are left", left)
		}
	}
}

// Wherever a session goes over to the stream, nothing is missing and nothing comes twice.
func TestTheStreamGoesOnWhereBulkEnds(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable, "CREATE TABLE busy (v text)")
	w.close(w.stream(0)) // makes the slot
	w.busy("last")
	stream := w.tape("never")
	stream.until(`"last"`)
	for n := range 20 {
		p := w.tape("1MiB")
		p.src.catchUp.most = cdc.LSN(70_001 + 50_021*n)
		s := w.mustOpen(p.src, true)
		if err := s.Start(t.Context(), s.Identity().SlotFound.Confirmed); err != nil || s.bulk == nil {
			t.Fatalf("in bulk: %t, %v", s.bulk != nil, err)
		}
		p.src.catchUp.pause(cdc.MaxLSN) // so no other session comes
		p.on(s, `"last"`)
		if s.bulk != nil {
			t.Error("all was read in bulk")
		}
		w.close(s)
		p.compare(stream)
	}
}

// Whatever ends a session in the middle, nothing is missing and nothing comes out of order. The stream reads on where the reading in bulk
// failed.
func TestReadingInBulkThatIsCutOffLosesNothing(t *testing.T) {
	const bulkPID = "SELECT active_pid FROM pg_replication_slots WHERE database = current_database() AND temporary AND active"
	for name, cut := range map[string]string{
		"reader":    "SELECT pg_terminate_backend(active_pid)::text FROM (" + bulkPID + ") b",
		"walsender": "SELECT pg_terminate_backend(active_pid)::text FROM pg_replication_slots WHERE slot_name = current_database()",
	} {
		for _, version := range []string{"14", "15", "18"} {
			t.Run(name+" "+version, func(t *testing.T) {
				w := newWorld(t, testenv.Postgres(t, version), outboxTable, "CREATE TABLE busy (v text)")
				w.close(w.stream(0)) // makes the slot
				w.busy("last")
				stream := w.tape("never")
				stream.until(`"last"`)
				p := w.tape("512KiB")
				cuts := 0
				p.read(`"last"`, func(s *Session) {
					if s.bulk != nil && len(p.done) > 300*cuts && !s.bulk.began.IsZero() && cuts < 2 {
						if w.value("SELECT coalesce(("+cut+"), 'none')") == "true" {
							cuts++
						}
					}
				})
				p.compare(stream)
				if cuts == 0 || len(p.why) == 0 {
					t.Errorf("%d cuts, %d sessions that ended", cuts, len(p.why))
				}
				w.noCopies()
				t.Log(cuts, "cuts; sessions:", strings.Join(p.why, "; "))
			})
		}
	}
}

// Every session decodes a transaction again that was open when it began. So while one is open, sessions that read in bulk become rare.
func TestALongTransactionIsLeftToTheStream(t *testing.T) {
	const mega = 1 << 20
	for _, c := range []struct {
		at, end, restart cdc.LSN // MiB, read from 100 on and until 120
		paused           cdc.LSN
		err              bool
	}{
		{at: 104, end: 108, restart: 90},
		{at: 104, end: 108, restart: 80, paused: 128},
		{at: 104, end: 120, restart: 80}, // it is read
		{at: 100, end: 0, restart: 80},   // the segment before
		{at: 100, end: 0, restart: 60, paused: 140},
		{at: 104, end: 108, restart: 0, err: true},
	} {
		up := newCatchUp(&Config{BulkCatchUp: "1MiB", ConfirmKeepalives: true})
		s := newSession(nil, nil, sessionConfig{catchUp: up})
		s.dec = pgoutput.NewDecoder(100*mega, nil, pgoutput.Messages{})
		s.bulk = &bulk{
			catchUp: up, from: 100 * mega, until: 120 * mega, at: c.at * mega, end: c.end * mega, restart: c.restart * mega, gave: c.end * mega,
			wire: newWire(discard{}),
		}
		_, err := s.chunkRead()
		if got := cdc.LSN(up.paused.Load()); (err != nil) != c.err || got != c.paused*mega || (s.reopen != nil) != (c.paused > 0) {
			t.Errorf("%+v: %v, paused up to %d MiB, %v", c, err, got/mega, s.reopen)
		}
	}
}

// discard is a connection that takes everything.
type discard struct{ net.Conn }

func (discard) Write(b []byte) (int, error)      { return len(b), nil }
func (discard) SetWriteDeadline(time.Time) error { return nil }
func (discard) Close() error                     { return nil }

// A relay that reads in bulk has the slot as any other: a second one waits for it, and takes it when the first is gone.
func TestTheSlotIsHeldWhileItIsReadInBulk(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable, "CREATE TABLE busy (v text)")
	w.close(w.stream(0)) // makes the slot
	w.busy("last")
	w.cfg.BulkCatchUp = "512KiB"
	first := w.stream(0)
	if first.bulk == nil {
		t.Fatal("not in bulk")
	}
	confirmed := w.slot("confirmed_flush_lsn")
	w.until(first, "aggregate_id", committed(100))
	if got := w.slot("confirmed_flush_lsn"); got != confirmed {
		t.Errorf("the slot went from %s to %s, and nothing was confirmed", confirmed, got)
	}
	second := w.mustOpen(w.source(), false)
	soon, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := second.Start(soon, second.Identity().SlotFound.Confirmed); err == nil {
		t.Fatal("a second session has the slot")
	}
	w.close(second)
	w.close(first)
	if got := w.slot("active"); got != "false" {
		t.Error("the slot is in use after Close")
	}
	third := w.stream(0)
	if got := w.until(third, "aggregate_id", committed(1)); len(got) != 1 || got[0] != "single 0" {
		t.Errorf("%q came first", got)
	}
	w.close(third)
}

// A call that nobody reads holds the server's oldest snapshot, so it does not stay for long.
func TestACallThatNobodyReadsIsGivenUp(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable, "CREATE TABLE busy (v text)")
	w.close(w.stream(0)) // makes the slot
	w.busy("last")
	w.cfg.BulkCatchUp = "512KiB"
	s := w.stream(0)
	if err := s.Confirm(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	w.until(s, "aggregate_id", committed(10))
	if s.bulk == nil || s.bulk.began.IsZero() {
		t.Fatal("no call runs")
	}
	if err := s.Confirm(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	s.bulk.began, s.bulk.wire.read = time.Now().Add(-2*heldSnapshot), time.Now().Add(-2*heldSnapshot)
	if err := s.Confirm(t.Context(), 0); err != nil || s.bulk != nil {
		t.Fatalf("in bulk: %t, %v", s.bulk != nil, err)
	}
	w.noCopies()
	if err := s.Confirm(t.Context(), 0); err != nil || w.slot("active") != "true" {
		t.Fatalf("the slot is free, %v", err)
	}
	if _, err := s.Next(t.Context(), time.Second); !errors.Is(err, cdc.ErrReopen) || !fault.Retryable(err) {
		t.Errorf("%v", err)
	}
	w.close(s)
}

// A session that streams gives way to one that reads in bulk when Check has seen that it is far behind; and not where bulk is impossible,
// or failed on this WAL before.
func TestAStreamThatFallsBehindGivesWay(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable, "CREATE TABLE busy (v text)")
	w.cfg.BulkCatchUp = "512KiB"
	src := w.source()
	s := w.mustOpen(src, true)
	if err := s.Start(t.Context(), s.Identity().SlotFound.Confirmed); err != nil || s.bulk != nil {
		t.Fatalf("%v, in bulk: %t", err, s.bulk != nil)
	}
	w.busy("last")
	if _, err := s.Next(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := src.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.dies(s); !errors.Is(err, cdc.ErrReopen) {
		t.Fatalf("%v", err)
	}
	w.close(s)
	src.catchUp.pause(1 << 62)
	s = w.mustOpen(src, true)
	if err := s.Start(t.Context(), s.Identity().SlotFound.Confirmed); err != nil || s.bulk != nil {
		t.Fatalf("paused: %v, in bulk: %t", err, s.bulk != nil)
	}
	if got := w.until(s, "aggregate_id", committed(500)); len(got) < 500 {
		t.Errorf("%d rows", len(got))
	}
	w.close(s)
}

func TestWhereBulkIsImpossibleTheStreamReads(t *testing.T) {
	free := pg.Server{MaxSlots: 10, Slots: 8, MaxSenders: 10, Senders: 8}
	for _, c := range []struct {
		change func(f *pg.Facts)
		want   string
	}{
		{func(*pg.Facts) {}, ""},
		{func(f *pg.Facts) { f.Server.Recovery = true }, "standby"},
		{func(f *pg.Facts) { f.Slot.Failover = true }, "failover"},
		{func(f *pg.Facts) { f.Slot.WALStatus = "unreserved" }, "about to lose"},
		{func(f *pg.Facts) { f.Server.Slots++ }, "max_replication_slots"},
		{func(f *pg.Facts) { f.Server.Senders++ }, "max_wal_senders"},
	} {
		f := &pg.Facts{Server: free, Slot: &pg.Slot{}}
		c.change(f)
		got := spare(f)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
		up := newCatchUp(&Config{BulkCatchUp: "1MiB", ConfirmKeepalives: true})
		s := newSession(nil, nil, sessionConfig{catchUp: up, noBulk: got, logger: slog.New(slog.DiscardHandler), identity: cdc.Identity{Server: 20 << 20}})
		if in := s.plan(1<<20) > 1<<20; in != (c.want == "") {
			t.Errorf("%q: in bulk: %t", got, in)
		}
		if c.want != "" && s.plan(1<<20+1) != 1<<20+1 {
			t.Errorf("%q: it is tried again on the same WAL", got)
		}
	}
	for _, cfg := range []Config{{BulkCatchUp: "never", ConfirmKeepalives: true}, {BulkCatchUp: "auto"}} {
		if newCatchUp(&cfg).pays(0, 1<<60) {
			t.Errorf("%q, confirm_keepalives: %t", cfg.BulkCatchUp, cfg.ConfirmKeepalives)
		}
	}
	if auto := newCatchUp(&Config{BulkCatchUp: "auto", ConfirmKeepalives: true}); auto.pays(1, farBehind) || !auto.pays(1, farBehind+1) {
		t.Error("auto begins at another distance")
	}
}

// A role that may not read in bulk is not asked again.
func TestWithoutTheRightToReadInBulkTheStreamReads(t *testing.T) {
	for _, function := range []string{"pg_copy_logical_replication_slot(name, name, boolean)", "pg_logical_slot_get_binary_changes(name, pg_lsn, int, text[])"} {
		w := newWorld(t, testenv.Postgres(t, "16"), outboxTable, "CREATE TABLE busy (v text)")
		w.close(w.stream(0)) // makes the slot
		w.busy("last")
		stream := w.tape("never")
		stream.until(`"last"`)
		role := w.restricted()
		w.exec("ALTER ROLE "+role+" REPLICATION", "GRANT SELECT ON outbox TO "+role, "REVOKE EXECUTE ON FUNCTION "+function+" FROM public")
		p := w.tape("64KiB")
		denied := 0
		for begun := false; !begun; {
			s := w.mustOpen(p.src, true)
			err := s.Start(t.Context(), s.Identity().SlotFound.Confirmed)
			for err == nil && s.bulk != nil {
				_, err = s.Next(t.Context(), time.Second)
			}
			if err == nil {
				p.on(s, `"last"`)
				begun = true
			} else if denied++; !fault.Retryable(err) || !strings.Contains(err.Error(), "permission denied") {
				t.Fatal(err)
			}
			w.close(s)
		}
		p.compare(stream)
		if denied != 1 {
			t.Errorf("%s: denied %d times", function, denied)
		}
	}
}

// A fast shutdown does not wait for a reading in bulk, whether it is read or not.
func TestAFastShutdownDoesNotHangOnBulk(t *testing.T) {
	for _, version := range testenv.Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, version, testenv.Private())
			w := newWorld(t, pg, outboxTable, "CREATE TABLE busy (v text)")
			w.close(w.stream(0)) // makes the slot
			w.busy("last")
			w.cfg.BulkCatchUp = "512KiB"
			s := w.stream(0)
			w.until(s, "aggregate_id", committed(10))
			if s.bulk == nil {
				t.Fatal("not in bulk")
			}
			ended := make(chan error, 1)
			go func() {
				for {
					if err := s.Confirm(context.Background(), 0); err != nil {
						ended <- err
						return
					}
					time.Sleep(s.StatusEvery())
				}
			}()
			began := time.Now()
			if err := pg.Stop("fast", 2*time.Minute); err != nil {
				t.Fatal(err)
			}
			t.Logf("stopped in %s", time.Since(began).Round(100*time.Millisecond))
			if err := <-ended; !fault.Retryable(err) {
				t.Errorf("the session ended with %v", err)
			}
		})
	}
}
