package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
)

// skewWarn is from when on two clocks differ more than NTP lets them.
const skewWarn = 2 * time.Second

// clocks compares the brokers' clock with this machine's and, through that, with the database's.
//
// There is no request for the time. What is used is DescribeQuorum, which writes nothing: the active controller of a KRaft cluster
// (Kafka 3.3 and newer) answers when each voter was last in touch with it, by its own clock, and for itself that is now. So it is
// the controller's clock that is known, not that of each broker.
func (c *checker) clocks(ctx context.Context, sourceAhead *time.Duration) {
	const name = "clock"
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// The first request opens connections; only the second is as short as it can be.
	_, _, err := c.controllerTime(ctx)
	if err != nil {
		why := "only Kafka 3.3 and newer with KRaft tell it"
		fix := ""
		if kafka.Denied(err) {
			why, fix = "the relay's user may not describe the cluster", c.mend.grantCluster("Describe")
		}
		c.add(name, OK, fmt.Sprintf("the brokers' is not known: %s (%v)", why, said(err)), fix)
		return
	}
	sent := c.now()
	theirs, exact, err := c.controllerTime(ctx)
	received := c.now()
	if err != nil {
		c.add(name, OK, "the brokers' is not known: "+said(err), "")
		return
	}
	within := received.Sub(sent)/2 + time.Millisecond
	if !exact {
		within += time.Second // others are in touch with the controller twice a second
	}
	ahead := theirs.Sub(sent.Add(received.Sub(sent) / 2))
	level, fix := OK, ""
	if ahead.Abs() > skewWarn+within {
		level, fix = Warn, "Set the clocks of the brokers and of this machine (NTP): ages and latencies are off by that."
	}
	c.add(name, level, fmt.Sprintf("the controller's is %s this machine's (within %s)", apart(ahead), within.Round(time.Millisecond)), fix)
	if sourceAhead == nil {
		return
	}
	c.ahead, c.aheadKnown = *sourceAhead-ahead, true
	if c.ahead.Abs() > skewWarn+within {
		c.add("clock of the database", Warn, fmt.Sprintf("it is %s the controller's: topics judge the timestamps of events, which are the database's, by the brokers' clock", apart(c.ahead)),
			"Set the clocks of the brokers and of the database (NTP).")
	}
}

// apart says how far a clock is from another: "0.250s ahead of".
func apart(d time.Duration) string {
	if d < 0 {
		return fmt.Sprintf("%.3fs behind", -d.Seconds())
	}
	return fmt.Sprintf("%.3fs ahead of", d.Seconds())
}

var errNoClock = errors.New("the answer has no time")

// controllerTime is the active controller's clock. It is exact where the controller told it of itself; else it is the newest
// time that it knows of another.
func (c *checker) controllerTime(ctx context.Context) (at time.Time, exact bool, err error) {
	if err := c.mayDescribe(ctx); err != nil {
		return at, false, err
	}
	req := kmsg.NewPtrDescribeQuorumRequest()
	rt := kmsg.NewDescribeQuorumRequestTopic()
	rt.Topic = "__cluster_metadata"
	rt.Partitions = append(rt.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, c.cl)
	if err != nil {
		return at, false, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return at, false, err
	}
	newest := int64(-1)
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return at, false, err
			}
			for _, v := range append(p.CurrentVoters, p.Observers...) {
				newest = max(newest, v.LastFetchTimestamp)
				exact = exact || v.ReplicaID == p.LeaderID && v.LastFetchTimestamp > 0
			}
		}
	}
	if newest <= 0 {
		return at, false, errNoClock
	}
	return time.UnixMilli(newest), exact, nil
}

// mayDescribe says whether the cluster may be described, by a question that is no offence: a controller logs a DescribeQuorum that it
// refuses as an error, with its stack.
func (c *checker) mayDescribe(ctx context.Context) error {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeClusterAuthorizedOperations = true
	resp, err := req.RequestWith(ctx, c.cl)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return err
	}
	if resp.ClusterAuthorizedOperations == 0 { // only who may describe the cluster is told, and that would be among it
		return kerr.ClusterAuthorizationFailed
	}
	return nil
}
