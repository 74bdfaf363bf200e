package relay

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// If several states hold at one time, the relay shows the worst one, and the reasons of all.
func TestTheWorstStateIsShown(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.do(func() { w.storeDown = true })
		r := w.start(Config{})
		wants := func(state State, reasons ...string) {
			t.Helper()
			w.want(t, time.Minute, string(state), func() bool { return r.relay.Status().State == state })
			st := r.relay.Status()
			for _, text := range reasons {
				if !strings.Contains(st.Reason, text) {
					t.Errorf("%s: reason %q lacks %q", state, st.Reason, text)
				}
			}
			if st.Ready != (state == Streaming) || (st.Reason == "") != (state == Streaming) || time.Since(st.Since.Time) > time.Minute {
				t.Errorf("%s: ready %v, reason %q, since %s", state, st.Ready, st.Reason, time.Since(st.Since.Time))
			}
		}
		wants(NoCheckpoint, "store cannot be reached")
		w.do(func() { w.storeDown = false })
		wants(Streaming)

		time.Sleep(time.Hour)
		w.do(func() { w.stalled = true })
		w.commit("a")
		wants(Stalled, "delivery waits: brokers cannot be reached")
		if st := r.relay.Status(); !st.InStream {
			t.Error("a stalled relay reads the stream")
		}
		time.Sleep(time.Hour)
		w.do(func() { w.down = true })
		w.cut(errNet)
		time.Sleep(time.Minute)
		if st := r.relay.Status(); st.State != Stalled || st.InStream || !strings.Contains(st.Reason, "brokers cannot be reached") || !strings.Contains(st.Reason, "refused") {
			t.Errorf("source and Kafka are down: %s, in the stream %v, %s", st.State, st.InStream, st.Reason)
		}
		w.do(func() { w.stalled = false })
		wants(Connecting, "refused")
		w.do(func() { w.down = false })
		wants(Streaming)
	})
}

func TestStatesAreWorstFirst(t *testing.T) {
	order := []State{Halted, Hung, Stalled, Connecting, SlotAtRisk, Standby, CopyingRows, Streaming}
	for i, s := range order[1:] {
		if !order[i].Worse(s) || s.Worse(order[i]) || s.Worse(s) {
			t.Errorf("%s must be worse than %s", order[i], s)
		}
	}
	if all := slices.Compact(slices.Sorted(slices.Values(States))); len(all) != len(States) || len(all) != 12 {
		t.Errorf("States has %v", all)
	}
}

// Every stage can come and leads to the end, what reads also sends and confirms, and what the end of a
// run has closed does not open again.
func TestTheTableOfStages(t *testing.T) {
	come, over := map[stage]bool{atStart: true}, map[stage]bool{atEnd: true}
	for range stages {
		for _, m := range moves {
			for _, from := range m.from {
				if m.to != asItIs {
					come[m.to] = come[m.to] || come[from]
					over[from] = over[from] || over[m.to]
				}
			}
		}
	}
	for _, r := range stages {
		if !come[r.stage] || !over[r.stage] {
			t.Errorf("stage %s: comes %v, leads to the end %v", r.stage, come[r.stage], over[r.stage])
		}
		if reads := r.reads != readsNothing; reads != (r.sends == sendsNew) || reads && !r.confirms || reads && r.ending || r.sends == sendsNothing && r.confirms {
			t.Errorf("stage %s reads %s, sends %s, confirms %v, is an end %v", r.stage, r.reads, r.sends, r.confirms, r.ending)
		}
		if !slices.Contains(States, r.shown) || r.shown == Halted && r.covered {
			t.Errorf("stage %s is shown as %s, covered %v", r.stage, r.shown, r.covered)
		}
	}
	seen := map[string]stage{}
	for _, m := range moves {
		for _, from := range m.from {
			if before, twice := seen[fmt.Sprint(m.on, from)]; twice {
				t.Errorf("%s in stage %s: %s, and %s", m.on, from, before, m.to)
			}
			seen[fmt.Sprint(m.on, from)] = m.to
			if m.to == asItIs {
				continue
			}
			if r, to := from.rules(), m.to.rules(); r.ending && !to.ending || r.closed() && !to.closed() {
				t.Errorf("%s: from stage %s to %s", m.on, from, m.to)
			}
		}
	}
}

func TestWhatIsNotInTheTableIsADefect(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the end of a run came while it streamed")
		}
	}()
	atStream.after(ends)
}

// docs/architecture.md shows the table of the stages, and names the one of the moves.
func TestTheTableOfStagesIsInTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| stage | shown | sends | confirms |\n|---|---|---|---|\n")
	for _, r := range stages {
		shown, confirms := "`"+string(r.shown)+"`", "nothing"
		if !r.covered {
			shown += " alone"
		}
		if r.confirms {
			confirms = "durable"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.stage, shown, r.sends, confirms)
	}
	flat := func(text string) string { return strings.Join(strings.Fields(text), " ") } // a long line may be wrapped
	if table := b.String(); !strings.Contains(flat(string(page)), flat(table)) {
		t.Errorf("docs/architecture.md needs this:\n\n%s", table)
	}
}

// An attempt may go on although a stop was asked for, and then find that another process holds the slot.
func TestAStopIsShownWhateverComesLate(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.do(func() { w.stalled, w.clean = true, false })
		r := w.start(Config{ShutdownGrace: 20 * time.Second})
		w.commit("a")
		w.want(t, 5*time.Second, "in flight", func() bool { return r.relay.Status().InFlight.Events == 1 })
		opens := look(w, &w.opens)
		w.do(func() { w.slowOpen = 10 * time.Second })
		w.cut(errNet)
		w.want(t, 5*time.Second, "opening again", func() bool { return w.opens > opens })
		w.do(func() { w.slowOpen = 0 })
		w.start(Config{})
		w.want(t, 5*time.Second, "another process has the slot", func() bool { return w.session != nil })
		go r.stop()
		time.Sleep(12 * time.Second)
		if st := r.relay.Status(); st.State != Stalled || !strings.Contains(st.Reason, "stopping") {
			t.Errorf("%s: %s", st.State, st.Reason)
		}
		w.do(func() { w.stalled = false })
	})
}
