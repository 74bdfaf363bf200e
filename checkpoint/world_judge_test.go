package checkpoint

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv/short"
	"pgregory.net/rapid"
)

// A world is everything that can happen to a relay's servers between two starts.
type world struct {
	now       *server   // what the configured address leads to
	others    []*server // copies, standbys, old primaries: anything that ever was
	remember  memory
	ids       int
	timelines uint32 // highest given, in all systems: an archive sees to that
	systems   int

	tokens map[string]string // what each token that was shown stood for
	used   map[string]bool   // tokens that were accepted

	accepted, refused map[string]int
}

func newWorld() *world {
	w := &world{tokens: map[string]string{}, used: map[string]bool{}}
	w.begin(1)
	return w
}

// begin makes the first server of a world, and a record that fits it.
func (w *world) begin(epoch uint64) {
	w.systems++
	w.timelines++
	w.others = nil
	w.now = &server{
		system: fmt.Sprint(w.systems), timeline: w.timelines, database: "shop",
		slot: slot{name: "walpost", exists: true, confirmed: 0x100},
	}
	w.remember = memory{rec: &Record{
		Name: "shop.walpost", Epoch: epoch, SystemID: w.now.system, Timeline: w.now.timeline,
		Slot: "walpost", Database: "shop", Position: 0x100, Delivered: 0x100,
	}}
}

func (w *world) write(t *rapid.T) {
	for range rapid.IntRange(1, 5).Draw(t, "records") {
		w.ids++
		start := w.now.at()
		w.now.wal = append(w.now.wal, walRecord{
			id: w.ids, start: start, end: start + cdc.Position(rapid.IntRange(2, 9).Draw(t, "bytes")),
			timeline: w.now.timeline, tx: rapid.Bool().Draw(t, "ours"),
		})
	}
}

// place draws a boundary between records of s, not before from if it has reached that.
func place(t *rapid.T, s *server, from cdc.Position) cdc.Position {
	var places []cdc.Position
	if from <= 0x100 { // where every WAL begins
		places = append(places, 0x100)
	}
	for _, r := range s.wal {
		if r.end >= from {
			places = append(places, r.end)
		}
	}
	if len(places) == 0 {
		places = append(places, s.at())
	}
	return rapid.SampledFrom(places).Draw(t, "place")
}

// leave keeps what is there now, so that it can come back.
func (w *world) leave() { w.others = append(w.others, w.now.copy()) }

// come takes one of what was kept, as it was.
func (w *world) come(t *rapid.T) *server {
	if len(w.others) == 0 {
		t.Skip("nothing was kept")
	}
	return rapid.SampledFrom(w.others).Draw(t, "server").copy()
}

// promote opens a new timeline on s at a place that it has reached, not before from, with the slot as that place finds it.
func (w *world) promote(t *rapid.T, s *server, from cdc.Position) {
	at := place(t, s, from)
	s.wal = s.until(at)
	w.timelines++
	// What lies ahead on older timelines is cut away with them.
	history := []cdc.Fork{}
	for _, f := range s.history {
		if f.End.Position() <= at {
			history = append(history, f)
		}
	}
	timeline := s.timeline
	if len(history) < len(s.history) {
		timeline = s.history[len(history)].Timeline
	}
	s.history, s.timeline = append(history, cdc.Fork{Timeline: timeline, End: at.LSN()}), w.timelines
	switch rapid.IntRange(0, 3).Draw(t, "slot of the promoted") {
	case 0:
		s.slot = slot{name: s.slot.name} // before 17
	case 1:
		s.slot = slot{name: s.slot.name, exists: true, confirmed: at} // made on it
	case 2:
		s.slot.confirmed = min(s.slot.confirmed, at) // synchronized
	case 3:
		s.slot.confirmed = min(s.slot.confirmed, place(t, s, 0x100)) // synchronized some time ago
	}
	w.now = s
}

// start is what the relay does at every connect, and what the test is about. It says whether it went on.
func (w *world) start(t *rapid.T) bool {
	rec, found := w.remember.rec, w.now.identity()
	start, err := Judge(rec, found)
	truth := w.remember.truth(w.now)
	var ref *Refusal
	switch {
	case truth.unseen:
		// Either way: see Judge.
	case err == nil && truth.dishonest != "":
		t.Fatalf("a start at %s was taken, and %s\nrecord %+v %+v\nof WAL %+v\nfound %+v\nwith WAL %+v",
			start, truth.dishonest, rec, rec.Next, w.remember.wal, found, w.now.wal)
	case err == nil && start != truth.start:
		t.Fatalf("start at %s, and the histories part at %s\nrecord %+v", start, truth.start, rec)
	case err == nil && truth.back:
		t.Fatalf("a start on another line was taken\nrecord %+v\nfound %+v", rec, found)
	case err != nil && !errors.As(err, &ref):
		t.Fatalf("not a refusal: %v", err)
	case err != nil && truth.dishonest == "" && !truth.back:
		t.Fatalf("an honest start was refused: %v\nrecord %+v\nfound %+v", err, rec, found)
	}
	if err == nil {
		w.accepted["go on"]++
		if start < rec.Position {
			w.accepted["go on where the histories part"]++
		}
		if truth.unseen {
			w.begin(rec.Epoch + 1) // that world is past saving
			return true
		}
		w.hold()
		if start < rec.Position {
			w.stand(start)
		}
		return true
	}
	errors.As(err, &ref)
	w.refused[string(ref.Reason)]++
	w.checkToken(t, ref)
	if ref.From > max(rec.Position, found.SlotFound.Confirmed) || ref.To != 0 && ref.To <= ref.From {
		t.Fatalf("the gap is from %s to %s\nrecord %+v\nfound %+v", ref.From, ref.To, rec, found)
	}
	return false
}

func (w *world) checkToken(t *rapid.T, ref *Refusal) {
	if w.used[ref.Token] {
		t.Fatalf("token %s was accepted once, and comes again: %v", ref.Token, ref)
	}
	found := ref.Found
	found.Server, found.SlotFound.Restart, found.History = 0, 0, nil
	gap := fmt.Sprintf("%s %d/%d %+v", ref.Reason, ref.Record.Epoch, ref.Record.Position, found)
	if before, ok := w.tokens[ref.Token]; ok && before != gap {
		t.Fatalf("token %s is of\n%s\nand of\n%s", ref.Token, before, gap)
	}
	w.tokens[ref.Token] = gap
	// Nothing that goes on by itself gives the gap another name.
	if ref.Reason != ServerBehind {
		w.write(t)
	}
	_, err := Judge(w.remember.rec, w.now.identity())
	var again *Refusal
	if !errors.As(err, &again) || again.Token != ref.Token {
		t.Fatalf("token %s, and at the next start: %v", ref.Token, err)
	}
}

// hold writes the record of a new epoch, as it stands: it is true on the server that was found, Next included.
func (w *world) hold() {
	rec := *w.remember.rec
	rec.Epoch++
	rec.SystemID, rec.Timeline, rec.Slot, rec.Database = w.now.system, w.now.timeline, w.now.slot.name, w.now.database
	w.remember.rec = &rec
}

// stand puts the record where everything before lsn is delivered or given up, and nothing behind it.
func (w *world) stand(lsn cdc.Position) {
	rec := *w.remember.rec
	w.remember = memory{rec: &rec, wal: w.now.until(lsn)}
	rec.Position, rec.Next, rec.Delivered = lsn, nil, 0x100
	for _, r := range w.remember.wal {
		if r.tx {
			rec.Delivered = r.end
		}
	}
}

// TestAnHonestStartIsNeverRefusedAndADishonestOneAlways lets a world go on and starts the relay in it again and again.
// Whether a start is honest is told by the identity of each WAL record, which Judge does not have.
func TestAnHonestStartIsNeverRefusedAndADishonestOneAlways(t *testing.T) {
	accepted, refused := map[string]int{}, map[string]int{}
	world := func(t *rapid.T) {
		w := newWorld()
		w.accepted, w.refused = accepted, refused
		t.Repeat(map[string]func(*rapid.T){
			"":                func(*rapid.T) {},
			"deliver":         w.deliver,
			"deliver as well": w.deliver, // twice as often as anything else
			"write":           w.write,
			"start":           func(t *rapid.T) { w.start(t) },
			"accept the gap": func(t *rapid.T) {
				if !w.start(t) {
					w.accept(t)
				}
			},
			"the server crashes": func(t *rapid.T) {
				w.now.slot.confirmed = min(w.now.slot.confirmed, place(t, w.now, 0x100))
			},
			"a copy is kept":                           func(*rapid.T) { w.leave() },
			"a standby takes over":                     func(t *rapid.T) { w.leave(); w.promote(t, w.now.copy(), 0x100) },
			"a standby takes over that has all events": func(t *rapid.T) { w.leave(); w.promote(t, w.now.copy(), w.remember.rec.Delivered) },
			"restored to a moment":                     func(t *rapid.T) { w.leave(); w.promote(t, w.come(t), 0x100) },
			"a copy comes back":                        func(t *rapid.T) { c := w.come(t); w.leave(); w.now = c },
			"another system": func(t *rapid.T) {
				w.leave()
				w.systems++
				w.now = w.now.copy()
				w.now.system = fmt.Sprint(w.systems)
			},
			"the slot is dropped": func(*rapid.T) { w.now.slot = slot{name: w.now.slot.name} },
			"the slot is lost":    func(*rapid.T) { w.now.slot.lost = true },
			"the slot is made again": func(*rapid.T) {
				w.now.slot = slot{name: w.now.slot.name, exists: true, confirmed: w.now.at()}
			},
			"the slot is advanced": func(t *rapid.T) {
				if w.now.slot.exists && !w.now.slot.lost {
					w.now.slot.confirmed = max(w.now.slot.confirmed, place(t, w.now, w.now.slot.confirmed))
				}
			},
			"another database": func(t *rapid.T) {
				w.now.database = rapid.SampledFrom([]string{"shop", "shop", "test"}).Draw(t, "database")
			},
			"another slot": func(t *rapid.T) {
				w.now.slot.name = rapid.SampledFrom([]string{"walpost", "walpost", "other"}).Draw(t, "slot")
			},
		})
	}
	for range short.Pick(10, 40) { // rapid makes a round of the fast tier much shorter
		rapid.Check(t, world)
	}
	t.Logf("went on %v, refused %v", accepted, refused)
	for _, reason := range []Reason{
		OtherSystem, OtherDatabase, OtherSlot, TimelineBack, TimelineForked, ServerBehind, SlotMissing, SlotLost, SlotAhead,
	} {
		if refused[string(reason)] == 0 {
			t.Errorf("nothing was refused for %s: the test does not test it", reason)
		}
	}
	if accepted["go on"] == 0 || accepted["gap"] == 0 || accepted["go on where the histories part"] == 0 || accepted["nothing is missing"] == 0 {
		t.Error("the relay never went on")
	}
}

// deliver reads on for a while: the checkpoint first, and then the slot, if nothing comes between.
func (w *world) deliver(t *rapid.T) {
	if !w.start(t) {
		return
	}
	w.stand(place(t, w.now, w.remember.rec.Position))
	for _, r := range w.now.wal {
		if !r.tx || r.start < w.remember.rec.Position {
			continue
		}
		if rows := rapid.IntRange(0, 3).Draw(t, "rows in part"); rows > 0 {
			next := &Next{Commit: r.start, Rows: rows - 1}
			if rapid.Bool().Draw(t, "end known") {
				next.CommitEnd = r.end
			}
			if next.Rows > 0 {
				w.remember.wal = w.now.until(r.end)
			}
			w.remember.rec.Next = next
		}
		break
	}
	if rapid.Bool().Draw(t, "confirmed") {
		w.now.slot.confirmed = w.remember.rec.Position
	}
}

// truthOf says what a start at a position leaves out that was not delivered, unless histories part on one timeline; "" for nothing.
func (w *world) truthOf(start cdc.Position) string {
	delivered := map[int]bool{}
	for _, r := range w.remember.wal {
		delivered[r.id] = true
	}
	unseen := uint32(0) // the timeline on which they part
	for i, r := range w.now.wal {
		if r.end > start {
			break
		}
		if i < len(w.remember.wal) && w.remember.wal[i].id != r.id && w.remember.wal[i].timeline == r.timeline {
			unseen = r.timeline
		}
		if !delivered[r.id] && r.timeline != unseen {
			return fmt.Sprintf("record %d was not delivered", r.id)
		}
	}
	return ""
}

// accept goes on over the gap that has just been refused, as the relay does with --accept-gap.
func (w *world) accept(t *rapid.T) {
	_, err := Judge(w.remember.rec, w.now.identity())
	var ref *Refusal
	if !errors.As(err, &ref) {
		t.Fatalf("not refused at the second look: %v", err)
	}
	found := w.now.identity()
	if ref.NeedsSlot() {
		w.now.slot = slot{name: w.now.slot.name, exists: true, confirmed: w.now.at()}
		found = w.now.identity()
		found.SlotFound.Created = true
	}
	want := w.now.slot.confirmed
	if ref.Complete() { // which the slot still has
		want = ref.From
		w.accepted["nothing is missing"]++
		if w.truthOf(want) != "" {
			t.Fatalf("a gap that misses nothing: %s\nrefused %v", w.truthOf(want), ref)
		}
	}
	start, err := AcceptedStart(ref, found)
	if err != nil || start != want {
		t.Fatalf("the gap was accepted, and the start is %s, %v\nrefused %+v\nfound %+v", start, err, ref, found)
	}
	w.used[ref.Token] = true
	w.accepted["gap"]++
	w.hold()
	w.stand(start) // what was delivered in part is part of the gap
	if start, err := Judge(w.remember.rec, w.now.identity()); err != nil || start != want {
		t.Fatalf("the gap was accepted and recorded, and still: %s, %v", start, err)
	}
	if reflect.DeepEqual(ref.Record, w.remember.rec) {
		t.Fatal("the record is the same: the token is not used up")
	}
}
