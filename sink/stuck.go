package sink

import (
	"errors"
	"time"
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

// stuckAfter is how long a topic must wait for the answer to its oldest record while its brokers, leaders and replicas are seen to
// be well. It is longer than the client's own patience with a request, which is two thirds of it: ten seconds for the broker, and
// ten for the way.
const stuckAfter = 30 * time.Second

var errStuck = errors.New("no answers although the brokers are well: trying again through a new client")

// stuck is what is known of a topic's wait. Guarded by Kafka.mu.
type stuck struct {
	well  time.Time // since when the brokers were seen to be well without an acknowledgement; zero while they were not
	found bool      // the topic has to leave its client
	times int       // in a row: each time the patience doubles, so that brokers which are only slow are not asked for ever more
	all   int
}

// suspect is told what a look at a silent topic has shown, and decides whether it is stuck. mu is held.
func (s *Kafka) suspect(t *topic, well bool) {
	now := time.Now()
	switch k := &t.stuck; {
	case !well || t.flight == 0 || t.reason != nil:
		k.well = time.Time{}
	case k.well.IsZero() || k.well.Before(t.since):
		k.well = now
	case !k.found && now.Sub(k.well) >= s.patience<<min(k.times, 6):
		k.found, k.well = true, time.Time{}
		k.times++
		k.all++
		s.shut(t)
		t.signal()
	}
}

// abandon takes a stuck topic from its client. It is called by the topic's tender.
func (s *Kafka) abandon(t *topic) {
	s.mu.Lock()
	c, flight := t.through, t.flight
	s.mu.Unlock()
	s.log.Warn().Str("topic", t.name).Int("events", flight).
		Msg("no answers although the brokers are well: trying again through a new kafka client; events may be delivered twice")
	// The gate is shut, so no Send hands over another record of this topic; one that has begun must end before the client forgets.
	for n := s.handing.Load(); n != 0 && s.handing.Load() == n; {
		time.Sleep(100 * time.Microsecond)
	}
	c.PurgeTopicsFromProducing(t.name)
	// A request that is on the wire can still be written, by a broker that does not know it from the new client's: what comes later
	// must not be in the log before it. After this time the client has given each of them up, and closed its connection.
	select {
	case <-time.After(s.patience * 2 / 3):
	case <-s.ctx.Done():
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
	var pause backoff
	for {
		err := s.fresh(t, c.kind)
		s.moved(t, err)
		if err == nil {
			break
		}
		if !pause.sleep(s.ctx) {
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
