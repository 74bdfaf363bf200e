package cleanup

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
)

func TestNothingIsDeliveredBeforeBothHaveConfirmedTheMark(t *testing.T) {
	var h horizon
	p := Progress{Session: 1, Confirmed: 100}
	if !h.wants(p) {
		t.Fatal("a session without a mark wants one")
	}
	h.note(p, mark{xmin: 50, position: 200})
	if h.wants(p) {
		t.Error("a second mark is wanted while the first one waits")
	}
	for _, c := range []struct{ relay, slot cdc.LSN }{{100, 100}, {199, 300}, {300, 199}, {0, 0}} {
		if got := h.bound(Progress{Session: 1, Confirmed: c.relay}, c.slot); got != 0 {
			t.Errorf("with %v of the relay and %v of the slot: below %d", c.relay, c.slot, got)
		}
	}
	if got := h.bound(Progress{Session: 1, Confirmed: 200}, 200); got != 50 {
		t.Errorf("both have confirmed: below %d, must be 50", got)
	}
	if !h.wants(p) {
		t.Error("the next mark is not wanted")
	}
	h.note(p, mark{xmin: 60, position: 300})
	if got := h.bound(Progress{Session: 1, Confirmed: 250}, 250); got != 50 {
		t.Errorf("the first bound holds until the next: below %d", got)
	}
}

func TestAnotherSessionKnowsNothing(t *testing.T) {
	for _, next := range []uint64{0, 2} {
		var h horizon
		h.note(Progress{Session: 1, Confirmed: 100}, mark{xmin: 50, position: 100})
		if h.bound(Progress{Session: 1, Confirmed: 100}, 100) != 50 {
			t.Fatal("no bound")
		}
		h.note(Progress{Session: 1, Confirmed: 100}, mark{xmin: 60, position: 150})
		p := Progress{Session: next, Confirmed: 1000}
		if got := h.bound(p, 1000); got != 0 {
			t.Errorf("session %d: below %d", next, got)
		}
		if h.wants(p) != (next != 0) {
			t.Errorf("session %d: wants a mark: %v", next, h.wants(p))
		}
		h.note(Progress{}, mark{xmin: 70, position: 1})
		if got := h.bound(Progress{Session: 3, Confirmed: 1000}, 1000); got != 0 {
			t.Errorf("a mark that was noted without a session counts: below %d", got)
		}
	}
	var h horizon
	h.note(Progress{Session: 1}, mark{xmin: 50, position: 100})
	h.forget()
	if got := h.bound(Progress{Session: 1, Confirmed: 100}, 100); got != 0 {
		t.Errorf("after a lost connection: below %d", got)
	}
}

// A server that is a list of commits, restored to an earlier state and read anew now and then: whatever happens, a transaction below
// the bound is one whose commit the present session has confirmed.
func TestTheBoundIsNeverAboveWhatIsConfirmed(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 7))
		var h horizon
		type tx struct {
			id     uint64
			commit cdc.LSN // 0 while it is open
		}
		var (
			all       []tx
			nextID    uint64  = 3
			end       cdc.LSN = 1000
			confirmed cdc.LSN
			slot      cdc.LSN
			session   uint64 = 1
		)
		xmin := func() uint64 {
			for _, x := range all {
				if x.commit == 0 {
					return x.id
				}
			}
			return nextID
		}
		var noted *mark // read, and noted some steps later
		for range 300 {
			switch r.IntN(9) {
			case 0, 1:
				all = append(all, tx{id: nextID})
				nextID++
				end += 10
			case 2, 3:
				if len(all) > 0 {
					if x := &all[r.IntN(len(all))]; x.commit == 0 {
						end += 10
						x.commit = end
					}
				}
			case 4: // the relay goes on; the slot hears of it later
				confirmed += cdc.LSN(r.Int64N(int64(end-confirmed) + 1))
			case 5:
				slot += cdc.LSN(r.Int64N(int64(max(confirmed, slot)-slot) + 1))
			case 6:
				if noted != nil {
					h.note(Progress{Session: session, Confirmed: confirmed}, *noted)
					noted = nil
				} else if h.wants(Progress{Session: session, Confirmed: confirmed}) {
					noted = &mark{xmin: xmin(), position: end}
				}
			case 7:
				below := h.bound(Progress{Session: session, Confirmed: confirmed}, slot)
				for _, x := range all {
					if x.id < below && (x.commit == 0 || x.commit > confirmed) {
						t.Fatalf("seed %d: transaction %d is below %d, its commit is %v and %v is confirmed", seed, x.id, below, x.commit, confirmed)
					}
				}
			case 8:
				if r.IntN(5) == 0 { // restored: an earlier state, other transactions under the same ids
					n := r.IntN(len(all) + 1)
					all, nextID, end = all[:n:n], 3+uint64(n), 1000+cdc.LSN(20*n)
					all = append([]tx(nil), all...)
					for i := range all {
						all[i].commit = min(all[i].commit, end)
					}
					confirmed, slot = min(confirmed, 500), min(slot, 500)
					session, noted = session+1, nil
					h.forget() // the connection is gone, too
				}
			}
		}
	}
}

func TestPartitionsAreMadeAheadInTheWidthOfTheNewest(t *testing.T) {
	day := (24 * time.Hour).Seconds()
	now := 20000*day + 3600
	part := func(from, to float64) partition { return partition{from: from, to: to} }
	for name, c := range map[string]struct {
		parts []partition
		want  [][2]float64
	}{
		"none yet":        {nil, [][2]float64{{20000 * day, 20001 * day}, {20001 * day, 20002 * day}, {20002 * day, 20003 * day}, {20003 * day, 20004 * day}}},
		"enough":          {[]partition{part(20003*day, 20004*day), part(20000*day, 20001*day)}, nil},
		"one is missing":  {[]partition{part(20002*day, 20003*day)}, [][2]float64{{20003 * day, 20004 * day}}},
		"hours":           {[]partition{part(now-1800, now+1800)}, [][2]float64{{now + 1800, now + 5400}, {now + 5400, now + 9000}, {now + 9000, now + 12600}}},
		"left alone long": {[]partition{part(19000*day, 19001*day)}, [][2]float64{{20000 * day, 20001 * day}, {20001 * day, 20002 * day}, {20002 * day, 20003 * day}, {20003 * day, 20004 * day}}},
	} {
		got := plan(c.parts, now)
		if len(got) != len(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %v, want %v", name, got, c.want)
				break
			}
		}
	}
}

func TestAPartitionsNameFitsAndIsItsOwn(t *testing.T) {
	long := "a_table_whose_name_is_as_long_as_postgres_allows_it_to_be_which"
	if got := partName(long, 86400*20000, 3600); len(got) != 63 || got[len(got)-17:] != "_p20241004_000000" {
		t.Errorf("%s (%d)", got, len(got))
	}
	if got := partName(strings.Repeat("ж", 27), 86400*20000, 86400); got != strings.Repeat("ж", 26)+"_p20241004" {
		t.Errorf("cut within a letter: %q", got)
	}
	if got := partName("outbox", 86400*20000, 86400); got != "outbox_p20241004" {
		t.Error(got)
	}
}
