package sink

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv/short"
)

var modelSeeds = flag.Uint64("model", short.Raced[uint64](300, 40), "how many seeds the test against a model of the brokers tries")

// What is acknowledged is in the log, in the order of Send; no record is refused that was always good; and everything ends when the brokers
// work again. See model for what they do until then.
func TestAgainstAModelOfTheBrokers(t *testing.T) {
	for seed := range short.Pick(*modelSeeds, 40) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { againstModel(t, seed) })
		})
	}
}

func againstModel(t *testing.T, seed uint64) {
	const partitions = 3
	m := newModel(t, seed, partitions)
	cfg := DefaultConfig()
	if seed%3 == 0 {
		cfg.Linger = Linger(5 * time.Millisecond)
	}
	s := newKafka(cfg)
	s.brokers = m
	b := &bench{TB: t, Kafka: s, sent: map[string][]string{}, acked: map[string]bool{}, poison: map[string]error{}}
	stop := make(chan struct{})
	m.wg.Go(func() { m.disturb(stop) })
	for range 60 {
		m.mu.Lock()
		n, pause := m.r.IntN(120), time.Duration(m.r.Int64N(int64(300*time.Millisecond)))
		if m.r.IntN(20) == 0 {
			pause = 70 * time.Second
		}
		m.rests = pause > time.Minute
		back, third := m.refuses && m.r.IntN(8) == 0, m.r.Uint64N(3)
		m.mu.Unlock()
		for range n {
			m.mu.Lock()
			to, bad := m.r.Int32N(partitions), m.refuses && m.r.IntN(200) == 0
			topic := modelTopics[m.r.IntN(len(modelTopics))]
			if id := strconv.Itoa(len(b.ids)); bad {
				m.bad[id] = true
			}
			waits := time.Duration(max(0, m.r.IntN(8)-5)) * time.Millisecond
			m.mu.Unlock()
			time.Sleep(waits)
			b.sendRecord(cdc.Record{Topic: topic, Key: fmt.Append(nil, to), Partition: to, Value: []byte(strconv.Itoa(len(b.ids)))})
		}
		s.mu.Lock()
		for _, topic := range modelTopics {
			s.ask(s.topicOf(topic, time.Now())) // as now and then, so that a new leader may be known before the old one refuses
		}
		s.mu.Unlock()
		if time.Sleep(pause / 2); back {
			b.TakeBack("a", func(_ []byte, ticket *cdc.Ticket) bool { return ticket.Tx%3 == third })
		}
		time.Sleep(pause / 2)
		b.passOverAll()
	}
	close(stop)
	m.mu.Lock()
	m.calm = true
	m.mu.Unlock()
	for began := time.Now(); len(b.acked)+len(b.poison) < len(b.ids); b.passOverAll() {
		if time.Sleep(time.Second); time.Since(began) > 10*time.Minute {
			t.Errorf("%d of %d acknowledged, %d refused; stalled: %v", len(b.acked), len(b.ids), len(b.poison), s.Stalled())
			break
		}
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
	m.wg.Wait() // what arrives late arrives now

	for id, err := range b.poison {
		if !m.bad[id] && !errors.Is(err, cdc.ErrTakenBack) {
			t.Errorf("event %s is innocent: %v", id, err)
		}
	}
	b.rerunsMayBe = m.refuses || m.forgets || m.deletes // otherwise each record is in the log once
	if n := renewals(s); !b.rerunsMayBe && n > 0 {
		t.Errorf("%d times a partition gave up its producer id, although the leaders know it", n)
	}
	for n, l := range m.logs {
		var got, want []string
		for _, batch := range l.batches {
			for _, id := range batch.records {
				if b.poison[id] == nil && !m.gone[id] {
					got = append(got, id)
				}
			}
		}
		at := fmt.Sprint(modelTopics[n/partitions], "/", n%partitions)
		for _, id := range b.sent[at] {
			if b.acked[id] && !m.gone[id] {
				want = append(want, id)
			}
		}
		b.compare(at, got, want)
		if len(got) > len(want) && !m.forgets && renewals(s) == 0 && !m.deletes {
			t.Errorf("%s has %d records more than were sent, and no event counts as sent again", at, len(got)-len(want))
		}
	}
}

// passOverAll takes what has ended, and passes over what was refused.
func (b *bench) passOverAll() {
	b.take()
	for i := range b.buf {
		if b.buf[i].Err != nil {
			b.PassOver(&b.buf[i], nil)
		}
	}
}
