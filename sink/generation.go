package sink

import "time"

// A Kafka client keeps whatever it has learned of a topic, and a topic cannot be purged from it (TestPurgeWouldLoseARecord). So the
// clients of a sink have generations. When a generation has produced to many topics and most of them are not used any more, the
// next one begins: topics that are idle are forgotten, and each of the others leaves its client as soon as nothing of it is in
// flight. A client without topics is closed. A topic that comes again is asked about as a new one is, so a changed limit, or a topic that
// was created again, is noticed as before.
//
// Order per key holds, because a topic changes its client only with nothing in flight.

// keep says when a generation ends. Tests make it smaller.
type keep struct {
	topics int           // which a generation has at least
	recent time.Duration // a topic that was used within this time is used still
}

var usualKeep = keep{topics: 1000, recent: time.Minute}

// enter counts a topic in the present generation, and begins the next one where that is due. It returns the clients to close, and the
// topics that were forgotten. mu is held.
func (s *Kafka) enter(t *topic) (end []*client, forgotten []string) {
	if _, ok := s.names[t.name]; !ok && len(s.names) >= max(s.keep.topics, s.crowd) {
		now, used := time.Now(), 0
		for _, o := range s.topics {
			if o.pending > 0 || now.Sub(o.since) < s.keep.recent {
				used++
			}
		}
		s.crowd = 2 * used // else the topics that are used would fill the next generation at once
		if s.crowd <= len(s.names) {
			end, forgotten = s.nextGeneration()
		}
	}
	s.names[t.name] = struct{}{}
	return end, forgotten
}

// nextGeneration forgets the topics that are idle and has the others leave their clients. mu is held.
func (s *Kafka) nextGeneration() (end []*client, forgotten []string) {
	s.gen++
	s.names = map[string]struct{}{}
	for k, c := range s.next {
		if c != nil && c.topics == 0 {
			end = append(end, c)
		}
		s.next[k] = nil
	}
	for name, t := range s.topics {
		switch {
		case t.gate == halted:
			end = append(end, s.leave(t)...)
		case (t.gate == open || t.gate == idle) && t.pending == 0:
			end = append(end, s.leave(t)...)
			delete(s.topics, name)
			s.limits.Delete(name)
			forgotten = append(forgotten, name)
		case t.gate == open:
			s.shut(t)
		} // one that is tended leaves when its tender looks
	}
	s.lastTopic = nil
	return end, forgotten
}

// leave takes a topic from the clients of former generations and returns those that have no topic left. Nothing of the topic is in
// flight. mu is held.
func (s *Kafka) leave(t *topic) (end []*client) {
	for k, c := range t.cl {
		if c == nil || c.gen == s.gen {
			continue
		}
		t.cl[k] = nil
		if t.through == c {
			t.through = nil
		}
		if c.topics--; c.topics == 0 {
			end = append(end, c)
		}
	}
	return end
}

// closeAll closes clients that nothing is in flight at.
func (s *Kafka) closeAll(end []*client) {
	for _, c := range end {
		c.Close()
	}
}

// count is where the records of a topic are counted. Only so many topics are told apart, because each is a series of a metric.
func (s *Kafka) count(topic string) *uint64 {
	n := s.delivered[topic]
	if n == nil {
		if len(s.delivered) >= MaxTopicSeries {
			topic = OtherTopics
		}
		if n = s.delivered[topic]; n == nil {
			n = new(uint64)
			s.delivered[topic] = n
		}
	}
	return n
}

const (
	// MaxTopicSeries is how many topics Status tells apart: the first ones that something was delivered to.
	MaxTopicSeries = 200
	// OtherTopics stands in Status for all topics beyond MaxTopicSeries.
	OtherTopics = "other"
)
