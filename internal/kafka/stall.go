package kafka

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// How long a topic may give no acknowledgement, and how often the reason is asked for then.
const (
	StallAfter = 1500 * time.Millisecond
	ProbeEvery = 2 * time.Second
	ProbeLimit = 10 * time.Second // of one question
)

// Unwritable says what about a topic's state keeps a produce from being acknowledged. The topic must have been described with the
// setting min.insync.replicas.
func (t *Topic) Unwritable() error {
	if t.Err != nil {
		return Reason(t.Name, t.Err)
	}
	least, _ := strconv.Atoi(t.Settings["min.insync.replicas"]) // 0 if it is not told
	for _, p := range t.Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil || p.Leader < 0 {
			return fmt.Errorf("topic %s has no leader for partition %d: %w", t.Name, p.Partition, cmp.Or(err, error(kerr.LeaderNotAvailable)))
		}
		if len(p.ISR) < least {
			return fmt.Errorf("topic %s has %d in-sync replicas of partition %d, fewer than min.insync.replicas=%d: %w",
				t.Name, len(p.ISR), p.Partition, least, kerr.NotEnoughReplicas)
		}
	}
	return nil
}

// A Silence is a stall whose cause is not known yet.
type Silence struct {
	Topic string
	Since time.Duration // the last acknowledgement
}

func (e Silence) Error() string {
	return fmt.Sprintf("topic %s: no acknowledgement for %s", e.Topic, e.Since.Round(100*time.Millisecond))
}

// CauseKnown is false: a later error may tell the cause.
func (Silence) CauseKnown() bool { return false }
