package sink

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

// A LostRecords says that records were deleted from the front of the checkpoint topic, by its retention or by hand, and that it holds
// no checkpoint of Name. Nobody can tell whether that relay ran before, so only a person can decide. Compaction alone never
// moves the start of a topic.
type LostRecords struct {
	fault.ForPerson

	Topic string
	Name  string
	Start int64 // the first offset that is left
}

func (l *LostRecords) Error() string {
	return fmt.Sprintf("checkpoint topic %s holds no checkpoint of %q, and its records before offset %d were deleted: walpost cannot know whether this relay ran before",
		l.Topic, l.Name, l.Start)
}

// Hint says what to do for a relay that is new, and for one that is not.
func (l *LostRecords) Hint() string {
	return "Set cleanup.policy=compact on the topic, so that no checkpoint is deleted again. " +
		"If this relay ran before, its checkpoint is lost. If its slot exists, set source.snapshot to \"never\": the command below then begins at the position of the slot. " +
		"If its slot is gone, too, or if source.kind is poll, events may be missing: set source.snapshot: initial for this start, which publishes the rows of the table again " +
		"(a bound, after …, publishes those behind it again). " +
		"Start the relay once with " + fault.Command("run", "--accept-gap="+l.GapToken())
}

// Commands are those of Hint.
func (l *LostRecords) Commands() []fault.Advice {
	return []fault.Advice{{Command: fault.Command("run", "--accept-gap="+l.GapToken()), GivesUp: "events before the position of the slot, if Kafka lacks them"}}
}

// GapToken names this one loss: after a further deletion the token is another one.
func (l *LostRecords) GapToken() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "lost records %q %q %d", l.Topic, l.Name, l.Start))
	return fmt.Sprintf("%x", sum[:6])
}

// lost returns an error where records were deleted from the front of the topic, and none of them that is left is of a holder of the slot,
// under a number, alone or with the holder behind a dot (see relay.Store).
func (f *folded) lost() *LostRecords {
	if f.Start == 0 {
		return nil
	}
	for key := range f.records {
		epoch, _, _ := strings.Cut(key[len(f.prefix):], ".")
		if _, err := strconv.ParseUint(epoch, 10, 64); err == nil {
			return nil
		}
	}
	return &LostRecords{Topic: f.Topic, Name: strings.TrimSuffix(f.prefix, "/"), Start: f.Start}
}

// ReadCheckpoints reads a checkpoint topic as a start of the relay name does. It returns the relay's records and how far it came. patience
// is how long it waits without coming further. The error is a *LostRecords if the relay's checkpoint may have been deleted.
func ReadCheckpoints(ctx context.Context, cl *kgo.Client, topic, name string, patience time.Duration) (records map[string][]byte, at kafka.Reader, err error) {
	f := fold(cl, topic, name+"/")
	f.Patience = patience
	if err = f.ToEnd(ctx); err == nil {
		if lost := f.lost(); lost != nil {
			err = lost
		}
	}
	return f.records, f.Reader, err
}
