package parking

import (
	"fmt"
	"hash/fnv"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// A Loss is what happened to a topic that had open events.
type Loss string

// The losses.
const (
	Renamed    Loss = "renamed"    // the configuration names another topic
	Missing    Loss = "missing"    // the topic does not exist
	Recreated  Loss = "recreated"  // it is another topic of the same name
	Truncated  Loss = "truncated"  // records that were needed are gone from its front
	Incomplete Loss = "incomplete" // it lacks records behind its front, or they are damaged
	Short      Loss = "short"      // it ends before what is needed, perhaps only for a moment
)

// Lost is the error of a topic that no longer has what the checkpoint says is parked in it.
type Lost struct {
	Loss   Loss
	Anchor cdc.Anchor
	Topic  string       // of the configuration
	Now    cdc.LogState // of that topic
	Left   int          // of Incomplete: how many of the events it still has
}

// SameTopic reports whether two ids can be of one topic. Brokers before Kafka 2.8 give "".
func SameTopic(a, b string) bool { return a == b || a == "" || b == "" }

// Judge compares the topic with the anchor of the checkpoint, nil for none, and returns the offset to
// read from. The error is a *Lost. If its Loss is Truncated, the topic may say itself that the records
// are not needed: see Backlog.Needed.
func Judge(topic string, anchor *cdc.Anchor, now cdc.LogState) (from int64, err error) {
	if anchor == nil {
		return now.Start, nil
	}
	lost := &Lost{Anchor: *anchor, Topic: topic, Now: now}
	switch {
	case topic != anchor.Topic:
		lost.Loss = Renamed
	case now.Missing:
		lost.Loss = Missing
	case !SameTopic(now.ID, anchor.ID):
		lost.Loss = Recreated
	case now.End < anchor.Offset: // a new leader can tell too early an end for a moment
		lost.Loss = Short
	case now.Start > anchor.Offset:
		lost.Loss = Truncated
	default:
		return anchor.Offset, nil
	}
	if anchor.Open == 0 {
		return now.Start, nil
	}
	return now.Start, lost
}

func (l *Lost) Error() string {
	was := fmt.Sprintf("%d events were parked in topic %s", l.Anchor.Open, l.Anchor.Topic)
	switch l.Loss {
	case Renamed:
		return fmt.Sprintf("%s, and delivery.parking_topic is %s", was, l.Topic)
	case Missing:
		return was + ", which does not exist"
	case Recreated:
		return was + ", which was deleted and created again"
	case Incomplete:
		return fmt.Sprintf("%s, and %d of them can be read: its records were damaged, or compacted", was, l.Left)
	case Short:
		return fmt.Sprintf("%s, and its records from offset %d on are needed, but it ends at offset %d", was, l.Anchor.Offset, l.Now.End)
	default:
		return fmt.Sprintf("%s, and its records from offset %d on are needed, but it begins at offset %d", was, l.Anchor.Offset, l.Now.Start)
	}
}

// GapToken names this loss for --accept-gap.
func (l *Lost) GapToken() string {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s %s %s %d %d %s %s", l.Loss, l.Anchor.Topic, l.Anchor.ID, l.Anchor.Offset, l.Anchor.Open, l.Topic, l.Now.ID)
	return fmt.Sprintf("parked-%016x", h.Sum64())
}

// NeedsPerson is false for what can pass by itself: a topic that is missing may appear again when
// metadata has spread over the cluster, and a new leader learns the end.
func (l *Lost) NeedsPerson() bool { return l.Loss != Missing && l.Loss != Short }

// Retryable is the opposite of NeedsPerson.
func (l *Lost) Retryable() bool { return !l.NeedsPerson() }

// Hint says how to go on.
func (l *Lost) Hint() string {
	accept := "To go on without the events that are lost, run " + fault.Command("run", "--accept-gap="+l.GapToken()) +
		": newer events of their keys are then delivered. After the start, " + fault.Command("verify") + " lists the rows whose events are in no topic, and prints the command that publishes them. " +
		"The cleanup removes nothing until you run " + fault.Command("recover", "--close-gap="+l.GapToken()) + "."
	switch l.Loss {
	case Renamed:
		return "Set delivery.parking_topic to " + l.Anchor.Topic + " again, and release the keys (walpost dead retry) before you change it. " + accept
	case Missing: // this process waits with the slot, so no other one could accept the loss
		return "Create the topic again, with one partition, and correct what " + fault.Command("check") + " finds. walpost then halts, and prints how to go on without the events that are lost. " +
			"They are still in the table unless somebody deleted the rows."
	case Short:
		return "If this does not pass, stop walpost. " + accept
	default:
		return accept
	}
}
