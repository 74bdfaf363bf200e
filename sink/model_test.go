package sink

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
)

// A model is a cluster with two topics, for a sink in a bubble of synctest. It follows Kafka's rules for the sequence numbers of
// a partition (ProducerStateManager and ProducerAppendInfo), and is as unfriendly as they allow:
//
//   - it decides for each batch by itself whether it is appended, and what is answered: success, an error, or nothing;
//   - it looks at the content of a batch before it looks whether it has the batch, and changes what it refuses;
//   - a connection that dies may still deliver what was written to it, until the client's patience is over;
//   - a new leader has lost what was not acknowledged, or some of it, and the producer ids too; and so has one that was not
//     written to for a minute. Such a one is a new broker, because nobody sees that a leader has gone and come again;
//   - a topic is deleted and created again, with another id;
//   - what is told of a topic is older than it is.
type model struct {
	testing.TB
	refuses bool // batches for their content
	forgets bool // producer ids
	deletes bool // topics
	strict  bool // refuses a number that is not zero from an unknown producer id, as before Kafka 2.5

	wg sync.WaitGroup // of the connections

	mu      sync.Mutex // guards everything below
	r       *rand.Rand
	calm    bool                 // nothing goes wrong any more
	rests   bool                 // nothing changes for now
	logs    []*modelLog          // of the partitions of topic a, and then those of b
	conns   map[int32]*modelConn // by broker
	brokers int32
	ids     int64
	bad     map[string]bool // records that are refused, or were
	gone    map[string]bool // records that may have been acknowledged before their topic was deleted
}

var modelTopics = []string{"a", "b"}

type modelLog struct {
	batches   []modelBatch
	committed int                    // of batches: acknowledged, so they stay
	known     map[int64][]modelBatch // the newest ones of each producer id
	forgotten int                    // of batches: no leader knows their numbers any more
	remembers int                    // so many
	most      int                    // records in a batch
	used      time.Time
	leaders   []int32 // the epochs are their indices

	id      byte // of the topic
	created time.Time
	told    bool // how many partitions there are, because the sink has learned it
}

func (l *modelLog) leader() int32 { return l.leaders[len(l.leaders)-1] }

type modelBatch struct {
	n       int32 // index of the log
	topic   byte
	id      int64
	seq     int32
	records []string
}

type modelConn struct {
	broker int32
	queue  []*modelRequest // written, and not answered
	dead   bool
}

type modelRequest struct {
	batches []modelBatch
	resp    *kmsg.ProduceResponse
	err     error
	done    chan struct{}
}

func newModel(t testing.TB, seed uint64, partitions int) *model {
	m := &model{
		TB: t, r: rand.New(rand.NewPCG(seed, 3)), conns: map[int32]*modelConn{}, bad: map[string]bool{}, gone: map[string]bool{},
		refuses: seed%2 == 1, forgets: seed%4 >= 2, strict: seed%8 == 3, deletes: seed%5 == 4,
	}
	for range partitions * len(modelTopics) {
		m.brokers++
		m.logs = append(m.logs, &modelLog{known: map[int64][]modelBatch{}, remembers: 5, most: 1000, leaders: []int32{m.brokers % 2}, id: 1})
	}
	return m
}

// chance is true once in n times, unless the model is calm. mu is held.
func (m *model) chance(n int) bool { return m.r.IntN(n) == 0 && !m.calm }

func (m *model) sleep(most time.Duration) {
	m.mu.Lock()
	d := time.Duration(m.r.Int64N(int64(most)))
	m.mu.Unlock()
	time.Sleep(d)
}

var errModel = errors.New("the connection is closed")

func (m *model) produce(ctx context.Context, broker int32, req *request) (kmsg.Response, error) {
	m.mu.Lock()
	if m.chance(30) {
		m.mu.Unlock()
		m.sleep(time.Second)
		return nil, errModel // was not written
	}
	c := m.conns[broker]
	if c == nil || c.dead {
		c = &modelConn{broker: broker}
		m.conns[broker] = c
	}
	mine := &modelRequest{batches: m.read(req), done: make(chan struct{})}
	_ = req.AppendTo(nil)
	for _, b := range mine.batches {
		for _, l := range m.logsOf(modelTopics[int(b.n)/m.partitions()]) {
			l.told = l.told || l.id == b.topic
		}
	}
	if c.queue = append(c.queue, mine); len(c.queue) == 1 {
		m.wg.Go(func() { m.serve(c) })
	}
	m.mu.Unlock()
	select {
	case <-mine.done:
		return mine.resp, mine.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *model) partitions() int { return len(m.logs) / len(modelTopics) }

func (m *model) logsOf(topic string) []*modelLog {
	n := m.partitions()
	i := n * slices.Index(modelTopics, topic)
	return m.logs[i : i+n]
}

func (m *model) read(req *request) (batches []modelBatch) {
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			n := int32(m.partitions()*slices.Index(modelTopics, t.Topic)) + p.Partition
			batches = append(batches, readBatch(p.Records, modelBatch{n: n, topic: t.TopicID[0]}))
		}
	}
	return batches
}

func readBatch(wire []byte, b modelBatch) modelBatch {
	var rb kmsg.RecordBatch
	if err := rb.ReadFrom(wire); err != nil {
		panic(err)
	}
	b.id, b.seq = rb.ProducerID, rb.FirstSequence
	for src := rb.Records; len(src) > 0; {
		length, n := binary.Varint(src)
		var rec kmsg.Record
		if err := rec.ReadFrom(src[:n+int(length)]); err != nil {
			panic(err)
		}
		b.records = append(b.records, string(rec.Value))
		src = src[n+int(length):]
	}
	return b
}

// serve answers the requests of a connection one after the other, as a broker does.
func (m *model) serve(c *modelConn) {
	for {
		m.sleep(10 * time.Millisecond)
		m.mu.Lock()
		req := c.queue[0]
		if m.chance(40) {
			m.die(c, c.queue)
			return
		}
		resp := kmsg.NewPtrProduceResponse()
		for _, b := range req.batches {
			rt, rp := kmsg.NewProduceResponseTopic(), kmsg.NewProduceResponseTopicPartition()
			rt.Topic, rp.Partition = modelTopics[int(b.n)/m.partitions()], b.n%int32(m.partitions())
			if err := m.append(c.broker, b); err != nil {
				rp.ErrorCode = err.Code
			}
			if !m.chance(100) { // otherwise the answer lacks the partition
				rt.Partitions = append(rt.Partitions, rp)
				resp.Topics = append(resp.Topics, rt)
			}
		}
		m.mu.Unlock()
		m.sleep(10 * time.Millisecond)
		m.mu.Lock()
		if m.chance(30) {
			m.die(c, c.queue[1:])
			return
		}
		req.resp = resp
		close(req.done)
		c.queue = c.queue[1:]
		empty := len(c.queue) == 0
		m.mu.Unlock()
		if empty {
			return
		}
	}
}

// die ends a connection. Some of what was written to it arrives later. mu is held, and released.
func (m *model) die(c *modelConn, unread []*modelRequest) {
	c.dead = true
	late := slices.Clone(unread)
	late = late[:m.r.IntN(len(late)+1)]
	within := usualWire - time.Second
	if m.r.IntN(2) == 0 {
		within = 20 * time.Millisecond
	}
	for _, req := range c.queue {
		req.err = errModel
		close(req.done)
	}
	m.mu.Unlock()
	for i := range late {
		m.sleep(within / time.Duration(len(late)))
		m.mu.Lock()
		for _, b := range late[i].batches {
			_ = m.append(c.broker, b)
		}
		m.mu.Unlock()
	}
}

var (
	modelBefore = []*kerr.Error{ // it appends
		kerr.NotEnoughReplicas, kerr.NotEnoughReplicas, kerr.ThrottlingQuotaExceeded, kerr.TopicAuthorizationFailed, kerr.CorruptMessage,
		kerr.UnknownServerError, kerr.KafkaStorageError, kerr.NotLeaderForPartition, kerr.UnknownTopicOrPartition, kerr.RequestTimedOut,
	}
	modelBehind = []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.UnknownTopicOrPartition, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut,
		kerr.UnknownServerError, kerr.KafkaStorageError, kerr.UnknownTopicID,
	}
	modelRefusals = []*kerr.Error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp}
)

// append takes a batch. mu is held.
func (m *model) append(broker int32, b modelBatch) *kerr.Error {
	l := m.logs[b.n]
	switch {
	case b.topic != l.id:
		return kerr.UnknownTopicID
	case broker != l.leader():
		return kerr.NotLeaderForPartition
	}
	if m.chance(25) {
		return modelBefore[m.r.IntN(len(modelBefore))]
	}
	passing := len(b.records) > 1 && m.refuses && m.chance(30)
	if passing || len(b.records) > l.most || slices.ContainsFunc(b.records, func(id string) bool { return m.bad[id] }) {
		return modelRefusals[m.r.IntN(len(modelRefusals))]
	}
	if m.forgets && time.Since(l.used) > time.Minute && m.chance(2) {
		l.forget()
	}
	l.used = time.Now()
	known := l.known[b.id]
	same := func(o modelBatch) bool { return o.id == b.id && o.seq == b.seq && len(o.records) == len(b.records) }
	if !slices.ContainsFunc(known, same) {
		switch {
		case len(known) == 0 && m.strict && b.seq != 0:
			return kerr.UnknownProducerID
		case len(known) > 0 && b.seq != nextSeq(known[len(known)-1].seq, len(known[len(known)-1].records)):
			return kerr.OutOfOrderSequenceNumber
		}
		l.batches = append(l.batches, b)
		l.remember(b)
	}
	if m.chance(25) {
		return modelBehind[m.r.IntN(len(modelBehind))]
	}
	for i := len(l.batches) - 1; i >= l.committed; i-- {
		if same(l.batches[i]) {
			l.committed = i + 1
		}
	}
	return nil
}

func (l *modelLog) forget() {
	l.forgotten = len(l.batches)
	clear(l.known)
}

func (l *modelLog) remember(b modelBatch) {
	known := append(l.known[b.id], b)
	l.known[b.id] = slices.Clone(known[max(0, len(known)-l.remembers):])
}

// disturb changes leaders, limits and what is bad, until stop is closed.
func (m *model) disturb(stop <-chan struct{}) {
	for {
		m.sleep(400 * time.Millisecond)
		select {
		case <-stop:
			return
		default:
		}
		m.mu.Lock()
		l := m.logs[m.r.IntN(len(m.logs))]
		switch what := m.r.IntN(4); {
		case m.rests:
		case what == 0 && len(l.leaders) < 40:
			m.move(l)
		case what == 3 && m.deletes && m.r.IntN(4) == 0:
			m.recreate(modelTopics[m.r.IntN(len(modelTopics))])
		case !m.refuses:
		case what == 1:
			l.most = 1 + m.r.IntN(30)
		case what == 2 && len(l.batches) > l.committed: // what was appended is refused if it comes again
			records := l.batches[len(l.batches)-1].records
			m.bad[records[m.r.IntN(len(records))]] = true
		}
		m.mu.Unlock()
	}
}

func (m *model) move(l *modelLog) {
	next := l.leaders[m.r.IntN(len(l.leaders))] // one of before
	if next == l.leader() || m.forgets {
		m.brokers++
		next = m.brokers
	}
	l.leaders = append(l.leaders, next)
	l.batches = l.batches[:len(l.batches)-m.r.IntN(len(l.batches)-l.committed+1)]
	if m.forgets {
		l.remembers = []int{1, 5}[m.r.IntN(2)]
	}
	l.forgotten = min(l.forgotten, len(l.batches))
	if m.forgets && m.r.IntN(2) == 0 {
		l.forget()
	}
	clear(l.known)
	for _, b := range l.batches[l.forgotten:] {
		l.remember(b)
	}
}

// recreate deletes a topic and creates it again. What a leader still waits to acknowledge is gone as well.
func (m *model) recreate(topic string) {
	for _, l := range m.logsOf(topic) {
		for _, b := range l.batches {
			for _, id := range b.records {
				m.gone[id] = true
			}
		}
		m.brokers++
		*l = modelLog{
			known: map[int64][]modelBatch{}, remembers: 5, most: 1000, leaders: append(l.leaders, m.brokers),
			id: l.id + 1, created: time.Now(),
		}
	}
}

func (m *model) topics(_ context.Context, names []string) (all []kafka.Topic, err error) {
	m.sleep(20 * time.Millisecond)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.chance(15) {
		return nil, errModel
	}
	for _, name := range names {
		all = append(all, m.topic(name))
	}
	return all, nil
}

func (m *model) topic(name string) kafka.Topic {
	logs := m.logsOf(name)
	id := logs[0].id
	if id > 1 && time.Since(logs[0].created) < time.Second && m.chance(4) {
		id--
	}
	t := kafka.Topic{Name: name, ID: [16]byte{id}, Settings: map[string]string{"max.message.bytes": "600"}}
	for n, l := range logs {
		epoch := len(l.leaders) - 1
		if epoch > 0 && m.chance(4) {
			epoch--
		}
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Partition, p.Leader, p.LeaderEpoch = int32(n), l.leaders[epoch], int32(epoch)
		if m.chance(10) {
			p.Leader = -1
		}
		t.Partitions = append(t.Partitions, p)
	}
	if logs[0].told && logs[0].id == 1 && m.chance(10) { // partitions were added, and not all brokers have heard
		t.Partitions = t.Partitions[:1]
	}
	return t
}

func (m *model) identify(context.Context) (*kmsg.InitProducerIDResponse, error) {
	m.sleep(20 * time.Millisecond)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.chance(10) {
		return nil, errModel
	}
	m.ids++
	resp := kmsg.NewPtrInitProducerIDResponse()
	resp.ProducerID = m.ids
	return resp, nil
}
