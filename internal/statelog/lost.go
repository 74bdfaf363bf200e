package statelog

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
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
		"If the relay begins at the position of the slot, the cleanup removes nothing until you run " + l.closes() + " afterwards. " +
		"Start the relay once with " + fault.Command("run", "--accept-gap="+l.GapToken())
}

func (l *LostRecords) closes() string { return fault.Command("recover", "--close-gap="+l.GapToken()) }

// Commands are those of Hint.
func (l *LostRecords) Commands() []fault.Advice {
	return []fault.Advice{{Command: fault.Command("run", "--accept-gap="+l.GapToken()), GivesUp: "events before the position of the slot, if Kafka lacks them"}, {Command: l.closes()}}
}

// GapToken names this one loss: after a further deletion the token is another one.
func (l *LostRecords) GapToken() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "lost records %q %q %d", l.Topic, l.Name, l.Start))
	return fmt.Sprintf("%x", sum[:6])
}

// held reports whether one of the records is of a holder of the slot: under a number, alone or with the holder behind a dot (see
// relay.Store).
func held(name string, records map[string][]byte) bool {
	for key := range records {
		epoch, _, _ := strings.Cut(strings.TrimPrefix(key, name+"/"), ".")
		if _, err := strconv.ParseUint(epoch, 10, 64); err == nil {
			return true
		}
	}
	return false
}

// CheckRecords reads a checkpoint topic with a client, as a start of the relay name does. patience is how long it waits without coming
// further. The error is a *LostRecords if the relay's checkpoint may have been deleted. at is how far it came.
func CheckRecords(ctx context.Context, cl *kgo.Client, topic, name string, patience time.Duration) (at cdc.LogState, err error) {
	l := New(Config{Topic: topic})
	l.asks, l.patience = cl, patience
	_, at, err = fold(ctx, l, false, name+"/", name)
	return at, err
}
