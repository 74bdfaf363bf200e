package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/kafka"
)

// skewWarn is the difference of two clocks from which on NTP cannot be at work.
const skewWarn = 2 * time.Second

// clocks compares the brokers' clock with this machine's clock and, through that, with the database's clock.
//
// Kafka has no request for the time. DescribeQuorum, which writes nothing, tells it: the active controller of a KRaft cluster
// (Kafka 3.3 and newer) answers when each voter was last in touch with it, by its own clock. For itself that is now. So the
// controller's clock is known, but not the clock of each broker.
func (c *kafkaCheck) clocks(ctx context.Context, databaseAhead *time.Duration) {
	const name = "clock"
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// The first request opens connections; only the second is as short as it can be.
	if _, _, err := c.controllerTime(ctx); kafka.Denied(err) {
		c.add(name, OK, fmt.Sprintf("the brokers' clock is not known: the relay's user may not describe the cluster (%v)", said(err)), c.fixes.grantCluster("Describe"))
		return
	} else if err != nil {
		c.add(name, OK, fmt.Sprintf("the brokers' clock is not known: only Kafka 3.3 and newer with KRaft reports it (%v)", said(err)))
		return
	}
	sent := c.now()
	theirs, exact, err := c.controllerTime(ctx)
	received := c.now()
	if err != nil {
		c.add(name, OK, "the brokers' clock is not known: "+said(err))
		return
	}
	within := received.Sub(sent)/2 + time.Millisecond
	if !exact {
		within += time.Second // the other voters are in touch with the controller twice a second
	}
	ahead := theirs.Sub(sent.Add(received.Sub(sent) / 2))
	why := fmt.Sprintf("the controller's clock is %s this machine's clock (within %s)", apart(ahead), within.Round(time.Millisecond))
	if ahead.Abs() > skewWarn+within {
		c.add(name, Warn, why, fix.Words("Set the clocks of the brokers and of this machine (NTP): ages and latencies are wrong by the difference."))
	} else {
		c.add(name, OK, why)
	}
	if databaseAhead == nil {
		return
	}
	c.ahead, c.aheadKnown = *databaseAhead-ahead, true
	if c.ahead.Abs() > skewWarn+within {
		c.add("clock of the database", Warn, fmt.Sprintf("the database's clock is %s the controller's clock: the brokers judge timestamps of the database by their own clock", apart(c.ahead)),
			fix.Words("Set the clocks of the brokers and of the database (NTP)."))
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

// controllerTime is the active controller's clock. It is exact if the controller told the time of itself. Otherwise it is the newest
// time that the controller knows of another voter.
func (c *kafkaCheck) controllerTime(ctx context.Context) (at time.Time, exact bool, err error) {
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

// mayDescribe returns an error if the user may not describe the cluster. A controller logs a DescribeQuorum that it refuses as an error,
// with its stack, so this question comes first.
func (c *kafkaCheck) mayDescribe(ctx context.Context) error {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeClusterAuthorizedOperations = true
	resp, err := req.RequestWith(ctx, c.cl)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return err
	}
	if resp.ClusterAuthorizedOperations == 0 { // only a user who may describe the cluster is told, and Describe is then among the operations
		return kerr.ClusterAuthorizationFailed
	}
	return nil
}
