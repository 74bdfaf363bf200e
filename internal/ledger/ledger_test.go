package ledger

import (
	"strings"
	"testing"
)

// story enters events as "id" or "id'" (other bytes) or "id@1" (another partition), and committed
// ones as key+number.
func story(committed, arrived string) Report {
	l := New()
	for _, id := range strings.Fields(committed) {
		l.Commit(id, id[:1], int64(id[1]-'0'))
	}
	for _, s := range strings.Fields(arrived) {
		r := Record{Topic: "t", ID: s[:2], Key: s[:1], Bytes: [][]byte{[]byte(s[:2])}}
		if strings.HasSuffix(s, "'") {
			r.Bytes = append(r.Bytes, nil)
		}
		if strings.HasSuffix(s, "@1") {
			r.Partition = 1
		}
		l.Observe(r)
	}
	return l.Check()
}

func TestEachBrokenPromiseIsSeen(t *testing.T) {
	for _, c := range []struct {
		name, committed, arrived string
		want                     Report
	}{
		{"clean", "a1 b1 a2", "a1 b1 a2", Report{}},
		{"lost", "a1 b1 a2", "a1 a2", Report{Lost: 1}},
		{"invented", "a1", "a1 a2", Report{Invented: 1}},
		{"disordered", "a1 a2 b1", "a2 b1 a1", Report{Disordered: 1}},
		{"other keys may interleave", "a1 a2 b1", "b1 a1 a2", Report{}},
		{"replay of the tail", "a1 a2 b1", "a1 a2 a1 a2 b1", Report{Duplicates: 2}},
		{"replay twice", "a1 a2 b1", "a1 a2 a2 a1 a2 b1", Report{Duplicates: 3}},
		{"lone old event", "a1 a2 b1", "a1 a2 a1 b1", Report{Duplicates: 1, Scattered: 1}},
		{"replay with a hole", "a1 a2 a3", "a1 a2 a3 a1 a3", Report{Duplicates: 2, Scattered: 1}},
		{"changed", "a1 a2", "a1 a2 a2'", Report{Duplicates: 1, Changed: 1}},
		{"moved", "a1 a2", "a1 a2@1", Report{Moved: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := story(c.committed, c.arrived)
			c.want.Committed, c.want.Arrived = len(strings.Fields(c.committed)), len(strings.Fields(c.arrived))
			got.Examples = nil
			if got.String() != c.want.String() {
				t.Errorf("committed %q, arrived %q:\n got %s\nwant %s", c.committed, c.arrived, &got, &c.want)
			}
		})
	}
}

func TestWhatHasArrivedIsCountedBeforeTheCheck(t *testing.T) {
	l := New()
	for _, id := range []string{"a", "b", "a"} {
		l.Observe(Record{Topic: "t", ID: id})
	}
	records, duplicates := l.Arrived()
	if seen := l.Seen("a", "b", "c"); records != 3 || duplicates != 1 || seen != 2 {
		t.Errorf("%d records, %d duplicates, %d events seen; want 3, 1 and 2", records, duplicates, seen)
	}
}

// A commit may be entered again, and after its record. Check counts what is lost by itself.
func TestWhatIsMissingIsCounted(t *testing.T) {
	l := New()
	missing := func(want int) {
		t.Helper()
		if got, lost := l.Missing(), l.Check().Lost; got != want || lost != want {
			t.Errorf("%d are missing, and %d lost; want %d", got, lost, want)
		}
	}
	l.Observe(Record{Topic: "t", ID: "early"})
	l.Observe(Record{Topic: "t", ID: "invented"})
	for _, id := range []string{"early", "a", "b", "a"} {
		l.Commit(id, "key", 1)
	}
	missing(2)
	l.Observe(Record{Topic: "t", ID: "a"})
	l.Observe(Record{Topic: "t", ID: "a"})
	missing(1)
	l.Commit("a", "key", 1)
	missing(1)
	l.Reset()
	missing(0)
}
