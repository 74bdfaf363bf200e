package verify

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func origin(value string) func(*kgo.Record) { return header("walpost.origin", value) }

// A record of walpost replay or walpost dead retry arrives behind newer ones of its key, because a person asked for it.
func TestALateRecordIsNoFaultOfTheRelay(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"replay", "dead_letter"} {
		w := newWorld(t, "on")
		w.insert("a plain k 1")
		w.later()
		w.insert("b plain k 2")
		w.later()
		w.insert("c plain k 3")
		all := w.records()
		// Event a was lost, and somebody has published it again. Events b and c came twice.
		w.send(all[1], all[2], copyOf(all[0], origin(from)), copyOf(all[1], origin(from)), copyOf(all[2], origin(from)))
		r := w.verify()
		if w.wants(r, 0); r.Matched != 3 || r.Late != 1 || r.Marked != 2 {
			t.Errorf("%s: %+v", from, r)
		}
		// The same without the header is the relay's fault.
		w.send(copyOf(all[0]))
		w.wants(w.verify(), 0, "out_of_order a 5")
	}
}

// A replay that is ahead of the relay neither hides nor accuses what the relay sends after it.
func TestARelayIsJudgedWithoutTheReplaysBesideIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "on")
	for _, row := range []string{"a plain k 1", "b plain k 2", "c plain k 3"} {
		w.insert(row)
		w.later()
	}
	all := w.records()
	replayed := copyOf(all[2], origin("replay"))
	w.send(replayed, all[0], replayed, all[1], all[2], replayed, all[1], replayed, all[2]) // the relay was killed behind c
	r := w.verify()
	if w.wants(r, 2); r.Late != 0 || r.Marked != 4 {
		t.Errorf("%+v", r)
	}
}

// A replay that runs while the topic gets more partitions sends the same record to two of them.
func TestAReplayMayComeTwiceInTwoPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "on")
	w.insert("a plain k 1")
	all := w.records()
	once := copyOf(all[0], origin("replay"))
	w.send(all[0], once, copyOf(once, func(r *kgo.Record) { r.Partition = 0 }))
	if r := w.verify(); r.Differences() != 0 || r.Marked != 2 {
		t.Errorf("%+v", r)
	}
}

// The timestamp of a replayed record is older than that of the records before it. So it does not tell what retention has left.
func TestAReplayDoesNotTellWhatRetentionHasRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "on")
	w.insert("a plain k 1", "b plain k 2")
	all := w.records()
	old := copyOf(all[0], origin("replay"), func(r *kgo.Record) { r.Timestamp = r.Timestamp.AddDate(0, 0, -1) })
	w.send(all[1], old, all[0])
	w.trim("plain", 1)
	w.wants(w.verify(), 0, "retention b -1")
}
