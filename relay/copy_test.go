package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// fakeTables reads the log of the world as if it were two tables, one after the other. A key's rows are all in one table.
type fakeTables struct {
	w       *world
	p       *proc
	names   []string // in the order of the configuration
	checked error
	order   *string // of the marks, nil for "o"
}

func (f *fakeTables) of(p *proc) Tables {
	own := *f
	own.p = p
	if own.names == nil {
		own.names = []string{"first", "second"}
	}
	return &own
}

func (f *fakeTables) Check(context.Context) error { return f.checked }

func (f *fakeTables) Open(ctx context.Context) (Session, error) {
	return fakeSource{f.p}.Open(ctx, true, true)
}

func (f *fakeTables) Rows(_ context.Context, sess Session, c checkpoint.Copy) (Rows, error) {
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.p.dead || w.down {
		return nil, errNet
	}
	if w.rowsErr != nil {
		return nil, w.rowsErr
	}
	s := sess.(*fakeSession)
	r := &fakeRows{f: f, upTo: w.pos, at: c.At}
	w.readings++
	if s.id.SlotFound.Created && s.snapshot {
		r.upTo = s.id.SlotFound.Confirmed
		s.snapshot = false
	}
	for _, name := range f.names {
		switch {
		case name == c.At.Table:
			r.left = slices.Insert(r.left, 0, name)
		case !slices.Contains(c.Finished, name):
			r.left = append(r.left, name)
		}
	}
	return r, nil
}

type fakeRows struct {
	f    *fakeTables
	upTo cdc.Position
	at   checkpoint.Mark
	left []string
	n    int // rows read of the first of left
	vals [3]cdc.Value
	ev   cdc.Event
}

func tableOf(r *row) string {
	if r.key < "c" {
		return "first"
	}
	return "second"
}

// table is the rows of a table that are committed up to a position.
func (w *world) table(name string, upTo cdc.Position) (rows []*row, times []time.Time) {
	for _, t := range w.log {
		for _, r := range t.rows {
			if t.end <= upTo && tableOf(r) == name {
				rows, times = append(rows, r), append(times, t.time)
			}
		}
	}
	return rows, times
}

// place is the number of a mark's row in its table.
func place(m checkpoint.Mark) int {
	n, _ := strconv.Atoi(m.Key) //nolint:errcheck // "" is none
	return n
}

func (r *fakeRows) Next(ctx context.Context) (*cdc.Event, checkpoint.Mark, error) {
	w := r.f.w
	time.Sleep(time.Duration(r.n%7) * time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.f.p.dead || w.down {
		return nil, checkpoint.Mark{}, errNet
	}
	if len(r.left) == 0 {
		return nil, checkpoint.Mark{}, nil
	}
	name := r.left[0]
	if r.n == 0 && r.at.Table == name {
		r.n = place(r.at)
	}
	rows, times := w.table(name, r.upTo)
	if r.n >= len(rows) {
		r.left, r.n = r.left[1:], 0
		return nil, checkpoint.Mark{Table: name}, nil
	}
	row, at := rows[r.n], times[r.n]
	r.n++
	order := "o"
	if r.f.order != nil {
		order = *r.f.order
	}
	r.vals = [3]cdc.Value{{Bytes: []byte(row.id)}, {Bytes: []byte(row.key)}, {Bytes: indexText(row.index)}}
	r.ev = cdc.Event{Kind: cdc.Insert, Time: at, Row: cdc.Row{Relation: tableRel, Values: r.vals[:]}}
	return &r.ev, checkpoint.Mark{Table: name, Visible: r.upTo.String(), Order: order, Key: strconv.Itoa(r.n), Nth: 1, ID: row.id}, nil
}

func (r *fakeRows) Close() {
	clear(r.vals[:]) // what is handed over must not be ours any more
	r.f.w.do(func() { r.f.w.readings-- })
}

// judgeCopy holds a record of an unfinished copy against what has arrived.
func (w *world) judgeCopy(rec *checkpoint.Record) {
	arrived := func(rows []*row, why string) {
		for _, r := range rows {
			if r.routed && w.count[r.id] == 0 {
				w.fail("the record says %s, and %s has not arrived", why, r.id)
			}
		}
	}
	if m := rec.Copy.At; m.Table != "" {
		rows, _ := w.table(m.Table, w.pos)
		arrived(rows[:place(m)], fmt.Sprintf("that %d rows of table %s are published", place(m), m.Table))
	}
	for _, name := range rec.Copy.Finished {
		rows, _ := w.table(name, rec.Position)
		arrived(rows, "that table "+name+" is finished")
	}
	if rec.Copy.Slot && rec.Position > w.pos {
		w.fail("record of a copy at %s, the server is at %s", rec.Position, w.pos)
	}
}

// before makes a world with rows and without a slot.
func (w *world) before(transactions int) {
	for i := range transactions {
		w.commit("a", string("bcd-"[i%4]))
	}
	w.id.SlotFound = cdc.SlotState{}
}

func snapshot(w *world) Config {
	return Config{Create: true, Copying: &Copying{Origin: checkpoint.OriginSnapshot, Tables: &fakeTables{w: w}}}
}

// Nothing is written meanwhile: so what comes from the table comes once, whatever happens to the session, and whoever goes on.
func TestASnapshotOverLostSessionsAndStopsGivesEachRowOnce(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.before(60)
		cfg := snapshot(w)
		cfg.Window.Events = 5
		r := w.start(cfg)
		for i := range 5 {
			time.Sleep(200 * time.Millisecond)
			if st := r.relay.Status(); st.State != CopyingRows || st.Ready || !strings.Contains(st.Reason, "publishing rows of the table (snapshot)") {
				t.Errorf("%+v", st)
			}
			if i%2 == 0 {
				w.cut(errNet)
				continue
			}
			r.stopped(t, 5*time.Second)
			cfg.Copying = snapshot(w).Copying
			r = w.start(cfg)
		}
		w.want(t, time.Minute, "all rows", w.allDelivered)
		w.want(t, 2*time.Second, "the stream", func() bool { return w.newest().Copy == nil })
		time.Sleep(time.Second)
		if st := r.relay.Status(); !st.Ready || st.State != Streaming {
			t.Errorf("%+v", st)
		}
		w.commit("a", "b")
		w.want(t, time.Second, "the stream goes on", w.allDelivered)
		r.stopped(t, time.Second)
	})
}

// While the last record of a copy cannot be written the stream must not begin: a start would publish the table behind what the stream gave.
// A session that is lost then is no reason to read the table once more, whatever is written first when the store is back.
func TestTheStreamWaitsForTheRecordThatEndsTheSnapshot(t *testing.T) {
	for wait := range 16 {
		story(t, func(t *testing.T, w *world) {
			w.before(3)
			r := w.start(snapshot(w))
			w.want(t, 10*time.Second, "the copy begins", func() bool { rec := w.newest(); return rec != nil && rec.Copy != nil && rec.Copy.Slot })
			w.do(func() { w.storeDown = true })
			w.want(t, 10*time.Second, "all rows", w.allDelivered)
			w.commit("a") // of the stream; a reading of the table would give it too
			time.Sleep(30 * time.Second)
			w.cut(errNet)
			time.Sleep(time.Duration(wait) * 700 * time.Millisecond)
			w.do(func() {
				if w.allDelivered() {
					t.Error("the stream has begun")
				}
				w.storeDown = false
			})
			w.want(t, 40*time.Second, "the stream", w.allDelivered)
			r.stopped(t, time.Second)
		})
	}
}

// Rows that are delivered behind one that waits, as for its missing topic, are remembered until that one is delivered, and come
// again after a crash. Their number is bounded, in a copy as in the stream.
func TestACopyBoundsTheRowsBehindOneThatWaits(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.do(func() { w.hold = w.commitLocked([]string{"a"}).rows[0].id })
		for range 200 {
			w.commit("b")
		}
		w.do(func() { w.id.SlotFound = cdc.SlotState{} })
		cfg := snapshot(w)
		cfg.Window.Events = 10
		r := w.start(cfg)
		time.Sleep(time.Minute)
		n := 0
		w.do(func() { n = len(w.count) })
		if n == 0 || n > 2*cfg.Window.Events {
			t.Errorf("%d rows are delivered behind one that waits, with a window of %d", n, cfg.Window.Events)
		}
		w.do(func() { w.hold = "" })
		w.want(t, time.Minute, "all rows", w.allDelivered)
		r.stopped(t, 5*time.Second)
	})
}

// While nothing is delivered for long, as when Kafka or the schema registry is down, a copy holds no snapshot of the database. It goes on
// behind the last row that it has taken, so that no row comes twice. A reading without an order cannot go on, and keeps its snapshot.
func TestACopyHoldsNoSnapshotWhileNothingIsDelivered(t *testing.T) {
	for name, c := range map[string]struct {
		order  string
		outage func(w *world, begins bool)
	}{
		"ordered":         {"o", func(w *world, begins bool) { w.stalled = begins }},
		"unordered":       {"", func(w *world, begins bool) { w.stalled = begins }},
		"schema registry": {"o", func(w *world, begins bool) { w.unanswered = begins }},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.before(60)
				cfg := snapshot(w)
				cfg.Copying.Tables.(*fakeTables).order = &c.order
				cfg.Window.Events = 5
				r := w.start(cfg)
				for range 3 {
					had := look(w, &w.arrivals)
					w.want(t, 20*time.Second, "rows", func() bool { return w.arrivals > had+15 })
					w.do(func() { c.outage(w, true) })
					time.Sleep(4 * time.Minute)
					if n := look(w, &w.readings); n != 1 {
						t.Errorf("after 4 minutes: %d readings", n)
					}
					time.Sleep(2 * time.Minute)
					if n := look(w, &w.readings); (n == 0) != (c.order != "") {
						t.Errorf("after 6 minutes: %d readings", n)
					}
					w.do(func() { c.outage(w, false) })
				}
				w.want(t, time.Minute, "all rows", w.allDelivered)
				w.want(t, time.Minute, "the stream", func() bool { return w.newest().Copy == nil })
				w.do(func() {
					for id, n := range w.count {
						if n != 1 {
							t.Errorf("%s came %d times", id, n)
						}
					}
				})
				r.stopped(t, 5*time.Second)
				if n := look(w, &w.readings); n != 0 {
					t.Errorf("at the end: %d readings", n)
				}
			})
		})
	}
}

func TestASnapshotHaltsAtARowThatCannotBePublished(t *testing.T) {
	for name, spoil := range map[string]func(w *world){
		"routed":    func(w *world) { w.commit("!") },
		"delivered": func(w *world) { w.poison[w.commit("a").rows[0].id] = true },
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.before(3)
				spoil(w)
				w.commit("a")
				w.id.SlotFound = cdc.SlotState{}
				r := w.start(snapshot(w))
				<-r.done
				if !fault.NeedsPerson(r.err) || !strings.Contains(r.err.Error(), "of public.outbox") {
					t.Errorf("%v", r.err)
				}
				if rec := w.record(); rec.Copy == nil || rec.Copy.Rows > 6 {
					t.Errorf("record %+v", rec.Copy)
				}
			})
		})
	}
}

func TestASnapshotBeginsOnlyWhereItMay(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.before(3)
		cfg := snapshot(w)
		cfg.Copying.Tables.(*fakeTables).checked = fault.Config(errors.New("no order"), "")
		r := w.start(cfg)
		<-r.done
		if !fault.Misconfigured(r.err) || w.id.SlotFound.Exists || len(w.records) != 0 {
			t.Errorf("%v, slot %+v, records %v", r.err, w.id.SlotFound, w.records)
		}
		w.id.SlotFound = cdc.SlotState{Exists: true, Confirmed: w.pos}
		r = w.start(snapshot(w))
		<-r.done
		if !fault.Misconfigured(r.err) || !strings.Contains(r.err.Error(), "no checkpoint belongs to it") || look(w, &w.opens) < foreignTries {
			t.Errorf("%v after %d looks", r.err, w.opens)
		}
	})
}

// Between the record that a slot is about to be made and the first row anything can happen; the next start knows whose slot it is.
// With a bound, a slot that is there has the position: only a snapshot of all rows could not tell which rows are older.
func TestABoundDoesNotMatterWhereTheSlotIs(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.commit("a")
		cfg := snapshot(w)
		cfg.Copying.After = 4242
		r := w.start(cfg)
		w.want(t, time.Minute, "the event that the slot has", w.allDelivered)
		if rec := w.record(); rec.Copy != nil {
			t.Errorf("a copy of the table: %+v", rec.Copy)
		}
		r.stopped(t, 5*time.Second)
	})
}

func TestASlotThatWasAboutToBeMadeIsTaken(t *testing.T) {
	for name, made := range map[string]bool{"before the slot": false, "behind the slot": true} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.clean = false
				w.before(5)
				rec := &checkpoint.Record{
					Version: 1, Name: "shop", Epoch: 1, SystemID: w.id.SystemID, Timeline: 1, Slot: w.id.Slot, Database: w.id.Database, Position: w.pos,
					Copy: &checkpoint.Copy{Origin: checkpoint.OriginSnapshot}, Holder: "gone", Time: time.Now(),
				}
				w.records[rec.HolderKey()] = rec.Encode()
				w.commit("a")
				if made {
					w.id.SlotFound = cdc.SlotState{Exists: true, Confirmed: w.pos}
				}
				w.commit("a")
				r := w.start(snapshot(w))
				w.want(t, 10*time.Second, "all rows", w.allDelivered)
				r.stopped(t, time.Second)
			})
		})
	}
}

func TestARunWithoutTheSnapshotRefusesToForgetIt(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.before(50)
		cfg := snapshot(w)
		cfg.Window.Events = 3
		r := w.start(cfg)
		w.want(t, 10*time.Second, "some rows", func() bool { return len(w.count) > 5 })
		r.stopped(t, 5*time.Second)
		r = w.start(Config{Create: true})
		<-r.done
		if !fault.Misconfigured(r.err) || !strings.Contains(fault.Hint(r.err), `source.snapshot as it was`) {
			t.Errorf("%v", r.err)
		}
		r = w.start(Config{Create: true, SkipSnapshot: true})
		w.do(func() { w.gapsOK = true }) // what is left out, is left out
		w.want(t, 10*time.Second, "given up", func() bool { return w.newest().Copy == nil })
		r.stopped(t, time.Second)
		r.wantLog(t, "THE SNAPSHOT IS GIVEN UP", 1)
	})
}

// While an accepted gap is open, recover has nothing to do, and tells what closes the gap.
func TestARecoverNamesTheAcceptedGapThatIsOpen(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{Create: true})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		r.stopped(t, time.Second)
		w.do(func() {
			rec := *w.newest()
			rec.Accepted = []checkpoint.Accepted{{Token: "0123", Gap: "a gap", Time: time.Now()}}
			w.records[rec.HolderKey()] = rec.Encode()
		})
		r = w.start(Config{Create: true, Copying: &Copying{Origin: checkpoint.OriginRecover, Tables: &fakeTables{w: w}}})
		<-r.done
		if !errors.Is(r.err, ErrNoGap) || !strings.Contains(r.err.Error(), "recover --close-gap=0123") {
			t.Errorf("%v", r.err)
		}
	})
}

// Before the first run there is no gap, and recover does not claim that the slot is there.
func TestARecoverBeforeTheFirstRunSaysThatThereIsNoSlot(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		cfg := Config{Create: true, Copying: &Copying{Origin: checkpoint.OriginRecover, Tables: &fakeTables{w: w}}}
		for _, c := range []struct {
			exists bool
			says   string
		}{{false, "neither a slot nor a checkpoint"}, {true, "no checkpoint belongs to the slot"}} {
			w.do(func() { w.id.SlotFound.Exists = c.exists })
			r := w.start(cfg)
			<-r.done
			if !errors.Is(r.err, ErrNoGap) || !strings.Contains(r.err.Error(), c.says) {
				t.Errorf("slot exists %t: %v", c.exists, r.err)
			}
		}
	})
}

// The checkpoint of a relay at work is read after the source, so it can be ahead of where the server was then.
func TestARecoverBesideARelayAtWorkSeesNoGap(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		a := w.start(Config{Create: true})
		w.want(t, time.Second, "record", func() bool { return w.newest() != nil })
		end := make(chan bool)
		go func() {
			for {
				select {
				case <-end:
					return
				case <-time.After(50 * time.Millisecond):
					w.commit("a", "b")
				}
			}
		}()
		w.do(func() { w.slowLoad = 3 * time.Second })
		for range 3 {
			b := w.start(Config{Create: true, Copying: &Copying{Origin: checkpoint.OriginRecover, Tables: &fakeTables{w: w}}})
			<-b.done
			if !errors.Is(b.err, ErrNoGap) {
				t.Errorf("%v", b.err)
			}
		}
		w.do(func() { w.slowLoad = 0 })
		close(end)
		w.want(t, 10*time.Second, "delivered", w.allDelivered)
		a.stopped(t, time.Second)
	})
}

// A recover replaces the slot that is lost, publishes, and ends; a run goes on from there.
func TestARecoverEndsAndARunGoesOn(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		r := w.start(Config{Create: true})
		time.Sleep(time.Second)
		w.commit("a", "b")
		w.want(t, time.Second, "delivered", w.allDelivered)
		r.stopped(t, time.Second)
		for range 20 {
			w.commit("a", "b")
		}
		w.do(func() {
			w.id.SlotFound.Invalidation, w.clean = "wal_removed", false
			clear(w.count) // the table has all of them
		})
		tables := &fakeTables{w: w}
		asked := 0
		no := true
		gap := func(_ context.Context, _ *checkpoint.Refusal, _, next *checkpoint.Copy) error {
			if asked++; no {
				return fmt.Errorf("%w: nothing", ErrDeclined)
			}
			next.Since = w.began
			return nil
		}
		cfg := Config{Create: true, Copying: &Copying{Origin: checkpoint.OriginRecover, Tables: tables, Gap: gap}}
		before := string(w.record().Encode())
		r = w.start(cfg)
		<-r.done
		if !errors.Is(r.err, ErrDeclined) || string(w.record().Encode()) != before || w.id.SlotFound.Invalidation == "" {
			t.Errorf("declined: %v", r.err)
		}
		no = false
		cfg.Window.Events = 3
		r = w.start(cfg)
		had := len(w.count)
		w.want(t, 10*time.Second, "some rows", func() bool { return len(w.count) > had+5 })
		r.stopped(t, 5*time.Second)
		rec := w.record()
		if rec.Copy == nil || rec.Copy.Since != w.began.UTC() || rec.Copy.From == 0 || rec.CommitTime.IsZero() {
			t.Errorf("record %+v, copy %+v", rec, rec.Copy)
		}
		r = w.start(Config{Create: true})
		<-r.done
		if !fault.NeedsPerson(r.err) || !strings.Contains(fault.Hint(r.err), "walpost recover") {
			t.Errorf("run before the end of the recover: %v", r.err)
		}
		r = w.start(cfg)
		<-r.done
		if r.err != nil || !w.everything() || w.record().Copy != nil || asked != 2 {
			t.Errorf("recover: %v, record %+v, asked %d times", r.err, w.record(), asked)
		}
		r = w.start(cfg)
		<-r.done
		if !errors.Is(r.err, ErrNoGap) {
			t.Errorf("recover once more: %v", r.err)
		}
		r = w.start(Config{Create: true})
		w.commit("a")
		w.want(t, 10*time.Second, "the stream", w.allDelivered)
		r.stopped(t, time.Second)
	})
}

// Another order of source.tables in the middle of a copy is no reason to leave out what is left of a table, nor to publish its rows again.
func TestATableIsFinishedOnlyWhenItsRowsHaveEnded(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		for range 30 {
			w.commit("a", "c")
		}
		w.id.SlotFound = cdc.SlotState{}
		cfg := snapshot(w)
		cfg.Window.Events = 3
		for i := range 6 {
			tables := cfg.Copying.Tables.(*fakeTables)
			tables.names = []string{"first", "second"}
			if i%2 == 1 {
				slices.Reverse(tables.names)
			}
			had := look(w, &w.arrivals)
			r := w.start(cfg)
			w.want(t, 10*time.Second, "some rows", func() bool { return w.arrivals >= had+7 })
			r.stopped(t, 5*time.Second)
			if rec := w.record(); rec.Copy == nil {
				t.Fatal("the copy is finished too soon: this says nothing")
			}
		}
		r := w.start(cfg)
		w.want(t, 10*time.Second, "all rows", w.allDelivered)
		w.want(t, 10*time.Second, "the end of the copy", func() bool { return w.newest().Copy == nil })
		r.stopped(t, 5*time.Second)
	})
}

// A copy reads rows on another connection, so only the signs of life can tell that the session is lost. Another process may hold the slot by then.
func TestACopyNoticesALostSessionSoon(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.clean = false
		w.before(6000)
		cfg := snapshot(w)
		cfg.Window.Events = 5000
		r := w.start(cfg)
		w.want(t, 10*time.Second, "rows", func() bool { return w.arrivals > 100 })
		opens := look(w, &w.opens)
		w.cut(errNet)
		w.want(t, 2*time.Second, "the next session is asked for", func() bool { return w.opens > opens })
		if st := r.relay.Status(); st.InFlight.Events > 4000 {
			t.Errorf("the window was full: %+v", st)
		}
		r.stop()
	})
}
