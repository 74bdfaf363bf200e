package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
)

// A snapshot whose slot is lost in the middle goes on behind the accepted gap, and recover closes the gap with it: no row of the table is
// left out either way.
func TestASnapshotOutlivesItsLostSlot(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"accepted", "recovered"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := newLossy(t, 1)
			s.source += ", snapshot: initial"
			s.extra += "\ndelivery: {window: {events: 20}}"
			<-s.load(&shop.Shop{Writers: 4, Rows: 10_000, Seed: 1, Tag: "a"}).done
			w := s.follow()
			r := s.start()
			w.more(t, time.Minute, 500)
			r.stopsClean()
			<-s.load(&shop.Shop{Writers: 4, Rows: 1000, Seed: 2, Tag: "a"}).done
			s.lose()
			<-s.load(&shop.Shop{Writers: 4, Rows: 1000, Seed: 3, Tag: "a"}).done
			r = s.start()
			if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), "the snapshot is not finished") {
				t.Fatalf("exit code %d\n%s", code, r.log)
			}
			if way == "accepted" {
				r = s.startReady("--accept-gap=" + tokenInHint.FindStringSubmatch(r.log.String())[1])
			} else {
				if code, out := s.command("recover", "--yes", "--since", "2020-01-01T00:00:00Z"); code != 2 || !strings.Contains(out, "--since: the snapshot is not finished") {
					t.Errorf("recover --since: code %d\n%s", code, out)
				}
				if code, out := s.answer("y\nno\n"); code != 1 || !strings.Contains(out, "Publish ") {
					t.Errorf("no to the second question: code %d\n%s", code, out)
				}
				if code, out := s.command("recover", "--yes", "--since", "2020-01-01T00:00:00Z"); code != 2 || !strings.Contains(out, "--since: the snapshot is not finished") {
					t.Errorf("recover --since, once more: code %d\n%s", code, out)
				}
				if code, out := s.command("recover", "--yes"); code != 0 {
					t.Errorf("recover: code %d\n%s", code, out)
				}
				r = s.startReady()
			}
			<-s.load(&shop.Shop{Writers: 2, Rows: 100, Seed: 4, Tag: "b"}).done
			duplicates := s.nothingLost(w, time.Minute)
			t.Logf("%d duplicates", duplicates)
			if way == "recovered" && duplicates > 0 {
				t.Errorf("%d duplicates, although recover compares with Kafka", duplicates)
			}
			r.stopsClean()
		})
	}
}

// The slot that a recover made is lost before the recover is finished: the next recover closes the original gap.
func TestARecoverWhoseSlotIsLostBeginsAgain(t *testing.T) {
	t.Parallel()
	s := newLossy(t, 1)
	w := s.gap(false)
	if code, out := s.answer("y\nno\n"); code != 1 || !strings.Contains(out, "Publish ") {
		t.Fatalf("no to the second question: code %d\n%s", code, out)
	}
	<-s.load(&shop.Shop{Writers: 4, Rows: 1000, Seed: 4, Tag: "a"}).done
	s.lose()
	<-s.load(&shop.Shop{Writers: 4, Rows: 1000, Seed: 5, Tag: "a"}).done
	code, out := s.command("recover", "--yes")
	if code != 0 || !strings.Contains(out, "walpost examines its whole gap again") {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	r := s.startReady()
	<-s.load(&shop.Shop{Writers: 2, Rows: 100, Seed: 6, Tag: "b"}).done
	s.onceEach(w, time.Minute)
	r.stopsClean()
}
