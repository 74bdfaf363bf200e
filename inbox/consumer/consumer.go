// Package consumer consumes Kafka topics for services that apply each event once.
//
// A [Consumer] is a member of a consumer group. It passes messages to a handler, several at the
// same time, but messages with one key one after another. It commits a message's offset once the
// message and all earlier ones in the partition are finished: the handler has returned nil, or the
// message is in the dead letter topic.
//
// A message can be delivered more than once, after a crash or when a partition moves to another
// member. [inbox.Handler] returns a handler that takes effect only once.
package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/lib/attempts"
	"github.com/walpost/walpost/internal/lib/backoff"
)

// A Consumer consumes topics as one member of a group. Make it with New, and call Run once.
type Consumer struct {
	cfg     Config
	options []kgo.Opt
	started atomic.Bool

	commits sync.Mutex // held while offsets are collected and committed; taken before mu

	mu         sync.Mutex
	cl         *kgo.Client
	handlers   context.Context // parent of the contexts of all partitions
	s          schedule
	writing    bool // a dead letter is being written: one at a time, each is a batch of its own
	stopping   bool
	joined     bool            // a member of the group, even if it has no partitions
	letIn      func()          // a broker has let the Consumer in, so a login that is refused later ends nothing
	absent     map[string]bool // the topics that the brokers do not have, as far as they answered
	waiting    bool            // for the first of Config.Topics: until it exists, the client does not join the group
	total      Stats           // its counters
	outage     outage
	complaints complaints
}

// New checks the configuration. It makes no connections.
func New(cfg Config) (*Consumer, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Consumer{cfg: cfg, complaints: complaints{log: cfg.Logger.With("group", cfg.Group)}}
	c.s = schedule{
		limit: cfg.Concurrency, batch: cfg.BatchSize, byPartition: cfg.Order == ByPartition, partitions: map[place]*partition{},
	}
	// First what may be changed, then what the user says, then what the promises depend on. A partition
	// that is resumed waits for the end of the fetch that runs without it, so this wait is short.
	c.options = append(c.options, kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.FetchMaxBytes(int32(min(max(cfg.BufferBytes/4, 1), 64<<20))),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(200*time.Millisecond), kgo.ProducerBatchMaxBytes(64<<20))
	c.options = append(c.options, cfg.ClientOptions...)
	c.options = append(c.options, kgo.SeedBrokers(cfg.Brokers...), kgo.ConsumerGroup(cfg.Group), kgo.RebalanceTimeout(cfg.RebalanceTimeout),
		kgo.ConsumeTopics(cfg.Topics...), kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), kgo.OnPartitionsAssigned(c.assigned), kgo.OnPartitionsRevoked(c.revoked),
		kgo.OnPartitionsLost(c.lost), kgo.RequiredAcks(kgo.AllISRAcks()))
	if err := kgo.ValidateOpts(c.options...); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	return c, nil
}

// Run consumes until ctx ends. Then it takes no more messages, gives running handlers Config.Grace,
// commits, and leaves the group. It logs and waits out faults that may pass, such as unreachable
// brokers or a missing privilege. If it can't start, it returns an error: a *LoginError if one of
// Config.Brokers refuses the login and none accepts it. Once a broker has accepted a login, the
// Consumer waits after a refused one, too, because passwords and certificates get renewed. Nil
// means that everything handled in the partitions that it still had is committed. Otherwise, the
// error is an *UncommittedError.
func (c *Consumer) Run(ctx context.Context) error {
	if c.started.Swap(true) {
		return errors.New("consumer: Run was called twice")
	}
	consume, refused := context.WithCancelCause(ctx)
	defer refused(nil)
	asking, letIn := context.WithCancel(consume)
	defer letIn()
	c.mu.Lock() // a callback must not see the Consumer before it has its client
	c.letIn = letIn
	var cancel context.CancelFunc
	c.handlers, cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	cl, err := kgo.NewClient(c.options...)
	c.cl = cl
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	var background sync.WaitGroup
	tend, stopTending := context.WithCancel(context.WithoutCancel(ctx))
	background.Go(func() { c.login(asking, refused) })
	background.Go(func() { every(tend, c.cfg.CommitInterval, func() { c.commit(tend) }) })
	background.Go(func() {
		c.measure(tend)
		every(tend, lagInterval, func() { c.measure(tend) })
	})

	for consume.Err() == nil {
		c.mu.Lock()
		messages, _ := c.share()
		c.mu.Unlock()
		fetches := cl.PollRecords(consume, min(messages, maxPoll))
		c.take(fetches)
		cl.AllowRebalance()
	}

	c.mu.Lock()
	c.stopping = true
	refused(nil)
	all := c.assignment()
	c.mu.Unlock()
	err = c.release(all)
	stopTending()
	background.Wait()
	leave, cancelLeave := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancelLeave()
	if left := cl.LeaveGroupContext(leave); left != nil {
		c.cfg.Logger.Warn("leaving the group failed: its partitions are free after the session timeout", "group", c.cfg.Group, "err", left)
	}
	closed := make(chan struct{})
	go func() { // brokers that do not answer can hold it up for half a minute
		defer close(closed)
		cl.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
	}
	c.mu.Lock()
	c.joined, c.waiting = false, false
	c.mu.Unlock()
	if login, ok := errors.AsType[*LoginError](context.Cause(consume)); ok {
		return login
	}
	return err
}

// maxPoll is how many messages one poll returns at most. A partition exceeds its share by one poll.
const maxPoll = 1000

func every(ctx context.Context, d time.Duration, f func()) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// take hands what was polled to the schedule. The group cannot rebalance meanwhile.
func (c *Consumer) take(fetches kgo.Fetches) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	fetches.EachError(func(topic string, partition int32, err error) {
		if !errors.Is(err, context.Canceled) && !errors.Is(err, kgo.ErrClientClosed) {
			c.complaints.about("fetch", "reading from Kafka failed", "topic", topic, "partition", partition, "err", err)
		}
	})
	var committed map[string]map[int32]kgo.EpochOffset
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		if f.Err != nil || len(f.Records) == 0 {
			return
		}
		c.complaints.over("fetch")
		p := c.s.partitions[place{f.Topic, f.Partition}]
		if p == nil {
			panic(fmt.Sprintf("consumer: records of partition %s/%d, which is not assigned", f.Topic, f.Partition))
		}
		if p.next < 0 {
			if committed == nil {
				committed = c.cl.CommittedOffsets()
			}
			if at, ok := committed[f.Topic][f.Partition]; ok {
				p.next = at.Offset
			}
		}
		if first := f.Records[0].Offset; p.next >= 0 && f.LogStartOffset > p.next {
			c.total.Missed += uint64(f.LogStartOffset - p.next)
			c.complaints.log.Error("Kafka removed messages before this group read them: check the retention of the topic",
				"topic", f.Topic, "partition", f.Partition, "expected", p.next, "first", first)
		}
		for _, rec := range f.Records {
			c.s.add(p, c.item(rec, now))
			p.next = rec.Offset + 1
		}
		p.end = f.HighWatermark
		c.flow(p)
	})
	c.dispatch()
}

func (c *Consumer) item(rec *kgo.Record, now time.Time) *item {
	it := &item{
		epoch: rec.LeaderEpoch, offset: rec.Offset, size: len(rec.Key) + len(rec.Value), received: now, ctx: rec.Context,
		msg: inbox.Message{
			Group: c.cfg.Group, Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset, Key: rec.Key, Value: rec.Value, Time: rec.Timestamp,
		},
	}
	for _, h := range rec.Headers {
		it.size += len(h.Key) + len(h.Value)
		it.msg.Headers = append(it.msg.Headers, inbox.Header{Key: h.Key, Value: h.Value})
		if h.Key == c.cfg.IDHeader {
			it.msg.ID = string(h.Value)
		}
	}
	if c.cfg.Scope != nil {
		it.msg.Scope = c.cfg.Scope(rec.Topic)
	}
	var err error
	if it.msg, err = it.msg.WithID(c.cfg.MissingID); err != nil {
		it.verdict = &verdict{reasonMissingID, err}
	}
	return it
}

// flow pauses a partition that uses up its share of the buffer, and resumes it when half of the share
// is free.
func (c *Consumer) flow(p *partition) {
	this := map[string][]int32{p.topic: {p.partition}}
	messages, bytes := c.share()
	switch {
	case p.closing:
	case !p.paused && (len(p.pending) >= messages || p.bytes >= bytes):
		p.paused = true
		c.cl.PauseFetchPartitions(this)
	case p.paused && len(p.pending) <= messages/2 && p.bytes <= bytes/2:
		p.paused = false
		c.cl.ResumeFetchPartitions(this)
	}
}

// share returns how many messages and bytes of the buffer each partition has.
func (c *Consumer) share() (messages, bytes int) {
	partitions := max(len(c.s.partitions), 1)
	return max(c.cfg.Buffer/partitions, 1), max(c.cfg.BufferBytes/partitions, 1)
}

// dispatch starts what may be started.
func (c *Consumer) dispatch() {
	for w := c.s.start(); w != nil; w = c.s.start() {
		c.total.Retried += uint64(retries(w))
		go c.handle(w)
	}
	if !c.writing {
		if l := c.s.startLetter(); l != nil {
			c.writing = true
			go c.write(l, l.items[0].msg, letterOf(l.items[0].msg, l.items[0].verdict, l.items[0].failures.Counted, c.cfg.Group, c.cfg.DeadLetterTopic))
		}
	}
}

// handle gives a work to the handler.
func (c *Consumer) handle(w *work) {
	err := c.call(w)
	c.mu.Lock()
	defer c.mu.Unlock()
	var failure *inbox.Failure
	c.s.running--
	if err == nil {
		c.outage.failures = 0
		c.total.Handled += uint64(len(w.items))
		if len(w.items) > 1 {
			c.complaints.over("batch")
		}
		if w.items[0].failures.All > 0 {
			c.complaints.over("handler")
		}
		c.s.finish(w.lanes, w.items)
	} else if !w.p.closing { // the next owner of the partition handles the message
		failure = c.failed(w, err)
	}
	if failure != nil && c.cfg.Failed != nil {
		c.dispatch() // others need not wait for Failed
		c.mu.Unlock()
		c.cfg.Failed(*failure)
		c.mu.Lock()
	}
	w.p.ended()
	c.flow(w.p)
	c.dispatch()
}

func (c *Consumer) call(w *work) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &inbox.PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	ctx, cancel := context.WithTimeout(w.p.ctx, c.cfg.HandlerTimeout)
	defer cancel()
	batch := make([]inbox.Message, len(w.items))
	for i, it := range w.items {
		batch[i] = it.msg
		batch[i].Attempt = it.failures.Counted + 1
	}
	if record := w.items[0].ctx; len(batch) == 1 && record != nil {
		ctx = ofRecord{ctx, context.WithoutCancel(record)}
	}
	if c.cfg.Handler != nil {
		return c.cfg.Handler(ctx, batch[0])
	}
	return c.cfg.BatchHandler(ctx, batch)
}

// ofRecord is a context with the values of a record's context before its own.
type ofRecord struct {
	context.Context
	values context.Context // without a cancellation
}

func (c ofRecord) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// failed decides what comes after a failure. It returns what Config.Failed is told.
func (c *Consumer) failed(w *work, err error) *inbox.Failure {
	first := w.items[0]
	if len(w.items) > 1 { // whatever the error is: one message can have caused it
		c.total.Split++
		c.complaints.about("batch", "a batch failed: its messages are handled one by one",
			"topic", w.p.topic, "partition", w.p.partition, "offset", first.offset, "messages", len(w.items), "err", err)
		for _, it := range w.items {
			it.alone = true
		}
		c.split(w, err)
		return nil
	}
	counted := first.failures.Counted
	fault := first.failures.Add(err)
	about := []any{"topic", w.p.topic, "partition", w.p.partition, "offset", first.offset, "id", first.msg.ID, "err", err}
	f := &inbox.Failure{Message: first.msg, Err: err}
	f.Message.Attempt = counted + 1
	switch {
	case fault == attempts.Elsewhere:
		c.total.Uncounted++
		c.complaints.about("handler", "handling fails, but not because of the message: the attempt does not count", about...)
	default:
		f.Attempt = first.failures.Counted
		c.total.Failed++
		if stack := stackOf(err); stack != "" {
			about = append(about, "stack", stack)
		}
		c.complaints.log.Warn("handling a message failed", append(about, "attempt", first.failures.Counted)...)
		if c.cfg.DeadLetterTopic != "" {
			if fault == attempts.Permanent {
				first.verdict = &verdict{reasonPermanent, err}
			} else if c.cfg.Attempts != inbox.Unlimited && first.failures.Counted >= c.cfg.Attempts {
				first.verdict = &verdict{reasonAttempts, err}
			}
		}
		if first.verdict != nil {
			c.s.free(w.lanes[0])
			f.Dead = true
			return f
		}
	}
	f.Pause = c.later(first, w.lanes[0])
	return f
}

// An outage slows down the batches that fail because Postgres is unavailable. Otherwise they would turn
// the whole buffer into single messages in a moment.
type outage struct {
	failures int       // in a row; those of concurrent calls count once
	over     time.Time // of the pause after the last one that counted
	pausing  int       // batches; each keeps its place among the concurrent calls
}

// split frees the lanes of a batch that has failed: after a pause if Postgres is unavailable.
func (c *Consumer) split(w *work, err error) {
	free := func() {
		for _, l := range w.lanes {
			c.s.free(l)
		}
	}
	if !unavailable(err) {
		free()
		return
	}
	now := time.Now()
	grown := !now.Before(c.outage.over)
	if grown {
		c.outage.failures++
	}
	pause := backoff.Backoff{Min: c.cfg.BackoffMin, Max: c.cfg.BackoffMax}.Pause(max(c.outage.failures, 1))
	if grown {
		c.outage.over = now.Add(pause)
	}
	c.outage.pausing++
	c.s.running++
	time.AfterFunc(pause, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.outage.pausing--
		c.s.running--
		free()
		c.dispatch()
	})
}

// unavailable reports whether Postgres cannot be reached, or takes no work now.
func unavailable(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	var server interface {
		error
		SQLState() string // of pgconn.PgError and pq.Error
	}
	if !errors.As(err, &server) {
		return false
	}
	state := server.SQLState()
	return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "53") || strings.HasPrefix(state, "57P")
}

// later frees a lane after the pause that its item's failures demand. It returns the pause.
func (c *Consumer) later(it *item, l *lane) time.Duration {
	pause := backoff.Backoff{Min: c.cfg.BackoffMin, Max: c.cfg.BackoffMax}.Pause(it.failures.All)
	time.AfterFunc(pause, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.s.free(l)
		c.dispatch()
	})
	return pause
}

// write writes a dead letter. The message is finished when the brokers have acknowledged the letter.
func (c *Consumer) write(l *lane, m inbox.Message, letter *kgo.Record) {
	err := errors.New("no dead letter topic is configured")
	if letter.Topic != "" {
		err = c.cl.ProduceSync(l.p.ctx, letter).FirstErr()
	}
	tooLarge := errors.Is(err, kerr.MessageTooLarge)
	if tooLarge {
		err = c.cl.ProduceSync(l.p.ctx, shorten(letter)).FirstErr()
		tooLarge = errors.Is(err, kerr.MessageTooLarge)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = false
	it := l.items[0]
	about := []any{"topic", m.Topic, "partition", m.Partition, "offset", m.Offset, "id", m.ID}
	switch {
	case err == nil:
		c.total.Dead++
		c.complaints.over("letter")
		c.complaints.log.Error("a message is dead: it is in the dead letter topic, and its partition goes on", append(about,
			"dead_letter_topic", letter.Topic, "reason", it.verdict.reason, "attempts", it.failures.Counted, "err", it.verdict.err)...)
		c.s.finish([]*lane{l}, l.items[:1])
	case !l.p.closing:
		it.failures.All++
		if tooLarge {
			about = append(about, "hint", "raise max.message.bytes of the dead letter topic")
		}
		c.complaints.about("letter", "a dead letter cannot be written: its message waits, and so do the later messages of its key",
			append(about, "dead_letter_topic", letter.Topic, "err", err)...)
		c.later(it, l)
	}
	l.p.ended()
	c.flow(l.p)
	c.dispatch()
}
