package sink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/wait"
)

// A client can get stuck with a partition. franz-go 1.22.2 stages up to five requests at a time; when it takes one back because the
// producer id changed meanwhile (sink.undoStagedBatches), it sets the partition's next batch to the one that it took back. If
// an answer has sent the partition back to its first batch in between, the batches before are skipped from then on: they are
// neither sent nor failed, whatever comes later is refused by the broker as out of order and ignored, and nothing
// that a user of the client may call starts the partition again. It takes several requests on the wire and errors from two sides
// within microseconds, and was found by TestOrderAndCompletenessUnderRandomFaults.
//
// So a topic that waits for answers for a long time although nothing can be seen to be wrong is taken from its client: the
// client forgets it, which fails what it holds, and the topic goes on through another client, beginning with the first
// record that was not acknowledged. What the broker had taken without our knowing it is delivered again, in order, as after a crash.
//
// The client that forgot a topic never produces to it again: its sequence numbers would start anew (see fresh).

// A slow follower looks the same. It holds up every acknowledgement until its leader drops it from the in-sync replicas. A leader looks
// for slow followers twice in replica.lag.time.max.ms, so that takes up to one and a half times this setting. A new client would not
// help then: it would only deliver again what the leader has already. So a topic waits for three times the setting.

// stuckWait is how long a topic must wait for the answer to its oldest record, while its brokers, leaders and replicas are seen to be
// well, before it leaves its client.
type stuckWait struct {
	least   time.Duration // whatever the brokers say: longer than wire
	unknown time.Duration // where a broker does not tell its replica.lag.time.max.ms: enough for the default, 30 s
	// wire is the client's own patience with a request: ten seconds for the broker, and ten for the way.
	wire time.Duration
}

var usualStuckWait = stuckWait{least: 30 * time.Second, unknown: lagTimes * 30 * time.Second, wire: 20 * time.Second}

const (
	lagSetting = "replica.lag.time.max.ms"
	lagTimes   = 3
)

var errStuck = errors.New("no answers although the brokers are healthy: trying again through a new client")

// stuck is what is known of a topic's wait. Guarded by Kafka.mu.
type stuck struct {
	well  time.Time // since when the brokers were seen to be well without an acknowledgement; zero while they were not
	found bool      // the topic has to leave its client
	times int       // in a row: each time the patience doubles, so that brokers which are only slow are not asked for ever more
}

// mustWait is how long a topic with these leaders must wait. The error says that a leader does not answer. The answers of leaders are
// kept in told.
func (s *Kafka) mustWait(ctx context.Context, t *kafka.Topic, told map[int32]time.Duration) (time.Duration, error) {
	longest := s.stuckWait.least
	for i := range t.Partitions {
		leader := t.Partitions[i].Leader
		wait, ok := told[leader]
		if !ok {
			var err error
			if wait, err = s.lagOf(ctx, leader); err != nil {
				return 0, fmt.Errorf("broker %d does not answer: %w", leader, err)
			}
			told[leader] = wait
		}
		longest = max(longest, wait)
	}
	return longest, nil
}

// lagOf is how long a topic must wait for a leader whose follower is slow.
func (s *Kafka) lagOf(ctx context.Context, broker int32) (time.Duration, error) {
	kv, err := kafka.BrokerSettings(ctx, s.adm, broker, lagSetting)
	if err != nil && !errors.As(err, new(*kerr.Error)) {
		return 0, err
	}
	ms, err := strconv.ParseInt(kv[lagSetting], 10, 32)
	if err != nil { // without the right to describe the cluster, which not every provider gives
		return s.stuckWait.unknown, nil //nolint:nilerr // it is the usual answer
	}
	return lagTimes * time.Duration(ms) * time.Millisecond, nil
}

// suspect is told what a look at a silent topic has shown, and decides whether it is stuck. mu is held.
func (s *Kafka) suspect(t *topic, well bool, wait time.Duration) {
	now := time.Now()
	switch k := &t.stuck; {
	case !well || t.flight == 0:
		k.well = time.Time{}
	case k.well.IsZero() || k.well.Before(t.since):
		k.well = now
	case !k.found && now.Sub(k.well) >= wait<<min(k.times, 6):
		k.found, k.well = true, time.Time{}
		k.times++
		s.abandoned++
		s.shut(t)
		t.signal()
	}
}

// abandon takes a stuck topic from its client. It is called by the topic's tender.
func (s *Kafka) abandon(t *topic) {
	s.mu.Lock()
	c, flight, silent := t.through, t.flight, time.Since(t.since)
	s.mu.Unlock()
	s.log.Warn().Str("topic", t.name).Int("events", flight).Dur("for", silent.Round(time.Millisecond)).
		Msg("no answers although the brokers are healthy: trying again through a new kafka client; events may be delivered twice")
	// The gate is shut, so no Send hands over another record of this topic; one that has begun must end before the client forgets.
	for n := s.handing.Load(); n != 0 && s.handing.Load() == n; {
		time.Sleep(100 * time.Microsecond)
	}
	c.PurgeTopicsFromProducing(t.name)
	// A request that is on the wire can still be written, by a broker that does not know it from the new client's: what comes later
	// must not be in the log before it. After this time the client has given each of them up, and closed its connection.
	if !wait.For(s.ctx, s.stuckWait.wire) {
		return
	}
	for {
		s.mu.Lock()
		left, closed := t.flight, s.closed
		s.mu.Unlock()
		if closed {
			return
		}
		if left == 0 {
			break
		}
		select {
		case <-t.wake:
		case <-s.ctx.Done():
			return
		}
	}
	var pause kafka.Backoff
	for err := errStuck; err != nil; {
		err = s.fresh(t, c.kind)
		if s.moved(t, err); err != nil && !pause.Sleep(s.ctx) {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.stuck.found = false
	for _, sl := range t.failed {
		sl.err = errStuck
	}
}
