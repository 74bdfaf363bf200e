package statelog

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

var (
	seeds   = flag.Uint64("seeds", short.Raced[uint64](12, 4), "how many seeds the test under random faults tries")
	produce = []kmsg.Key{kmsg.Produce}
)

func TestMain(m *testing.M) {
	os.Exit(testenv.MainWithoutLeaks(m))
}

// patience bounds every wait of these tests: it is reached only when something is wrong.
const patience = 60 * time.Second

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// waitFor polls what only shows from outside. It does not measure time.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for ctx := patient(t); !ok(); {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("it did not come about")
		}
	}
}

func config(brokers []string, topic string) Config {
	return Config{Config: kafka.Config{Brokers: brokers}, Topic: topic, Settings: Letters, Codec: kgo.SnappyCompression()}
}

// A world is a Kafka, and the name of a topic that is there or can be created.
type world struct {
	fake    *kfake.Cluster // nil for a real one
	brokers []string
	cl      *kgo.Client // of one who may do everything
	topic   string
}

// realWorld makes the world of a real Kafka, where there is one. The topic has the settings; nil is for a topic that is not there.
var realWorld func(t *testing.T, settings map[string]string) *world

// fakeWorld is realWorld for a fake one.
func fakeWorld(t *testing.T, settings map[string]string, opts ...kfake.Opt) *world {
	t.Helper()
	c := testenv.FakeKafka(t, opts...)
	w := &world{fake: c, brokers: c.ListenAddrs(), topic: "own"}
	var err error
	if w.cl, err = kgo.NewClient(kgo.SeedBrokers(w.brokers...)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.cl.Close)
	if settings != nil {
		if err := c.CreateTopic(w.topic, 1, settings); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// eachProtocol runs a test with the transactions of Kafka 4 and with those from before, in which a client adds partitions to a
// transaction before it produces to them.
func eachProtocol(t *testing.T, settings map[string]string, test func(t *testing.T, w *world)) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprint("old=", old), func(t *testing.T) {
			w := fakeWorld(t, settings, kfake.NumBrokers(3))
			if old {
				w.downgrade(t)
			}
			test(t, w)
		})
	}
}

// eachKafka is eachProtocol with a real Kafka, too.
func eachKafka(t *testing.T, settings map[string]string, test func(t *testing.T, w *world)) {
	eachProtocol(t, settings, test)
	if realWorld != nil {
		t.Run("real", func(t *testing.T) { test(t, realWorld(t, settings)) })
	}
}

func (w *world) downgrade(t *testing.T) {
	t.Helper()
	req := kmsg.NewPtrUpdateFeaturesRequest()
	f := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	f.Feature, f.UpgradeType = "transaction.version", 2
	req.FeatureUpdates = append(req.FeatureUpdates, f)
	resp, err := req.RequestWith(t.Context(), w.cl)
	if err != nil || resp.ErrorCode != 0 {
		t.Fatal(resp, err)
	}
}

func (w *world) deleteTopic(t testing.TB) {
	t.Helper()
	if _, err := kadm.NewClient(w.cl).DeleteTopic(patient(t), w.topic); err != nil {
		t.Fatal(err)
	}
}

// recreate makes the topic anew. It may be there still for a moment.
func (w *world) recreate(t testing.TB) {
	t.Helper()
	how := kafka.NewTopic{Name: w.topic, Partitions: 1}
	waitFor(t, func() bool {
		made, err := how.Create(patient(t), w.cl, false)
		return err == nil && made.Err == nil
	})
}

// truncate deletes the records before an offset. A broker may refuse that for a moment after a topic's settings have changed, because it
// uses them later than it shows them.
func (w *world) truncate(t testing.TB, before int64) {
	t.Helper()
	to := kadm.Offsets{}
	to.Add(kadm.Offset{Topic: w.topic, At: before})
	waitFor(t, func() bool {
		deleted, err := kadm.NewClient(w.cl).DeleteRecords(patient(t), to)
		if err == nil {
			err = deleted.Error()
		}
		if err != nil && !errors.Is(err, kerr.PolicyViolation) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// settings are those of the topic.
func (w *world) settings(t testing.TB, names ...string) map[string]string {
	t.Helper()
	is, err := kafka.DescribeTopic(patient(t), w.cl, w.topic, names...)
	if err != nil || is.Err != nil || len(is.Partitions) != 1 {
		t.Fatalf("%+v, %v", is, err)
	}
	return is.Settings
}

// id is that of the topic, or zero when there is none.
func (w *world) id(t testing.TB) [16]byte {
	t.Helper()
	is, err := kafka.DescribeTopic(patient(t), w.cl, w.topic)
	if err != nil {
		t.Fatal(err)
	}
	return is.ID
}

// set changes a setting of the topic, and waits until the brokers have it.
func (w *world) set(t testing.TB, key, value string) {
	t.Helper()
	changed, err := kadm.NewClient(w.cl).AlterTopicConfigs(patient(t), []kadm.AlterConfig{{Name: key, Value: &value}}, w.topic)
	if err == nil {
		err = changed[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return w.settings(t, key)[key] == value })
}

// A wire loses answers, with their connections.
type wire struct{ cut atomic.Int32 }

type wireConn struct {
	net.Conn
	w *wire
}

func (w *wire) dial(ctx context.Context, network, host string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, host)
	return wireConn{c, w}, err
}

func (c wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.w.cut.Load() > 0 && c.w.cut.Add(-1) >= 0 {
		_ = c.Close()
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET} // what the client sees of a real one
	}
	return n, err
}

type itsLog = Log // as a field, Log would hide testing.TB's

// A logBench is a Log with a book of what was appended and what has ended.
type logBench struct {
	testing.TB
	*itsLog
	values  []string // that were appended first, by ticket
	ended   []cdc.Appended
	written map[string]int64 // value -> offset, of what has ended without an error
	seen    []string         // that Read returned
	next    int64            // of Read
	proven  bool             // something that was appended since the last fence is in the topic
}

// open makes the log of a holder with the transactional id "relay-" and the topic.
func (w *world) open(t testing.TB) *logBench {
	t.Helper()
	return openLog(t, config(w.brokers, w.topic))
}

func openLog(t testing.TB, cfg Config) *logBench {
	t.Helper()
	cfg.TransactionalID = "relay-" + cfg.Topic
	b := &logBench{TB: t, itsLog: New(cfg), written: map[string]int64{}}
	b.patience = 10 * time.Second
	t.Cleanup(func() {
		if err := b.Close(patient(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// fence opens the topic, however often that has to be tried.
func (b *logBench) fence() (state cdc.LogState) {
	b.Helper()
	b.proven = false
	waitFor(b, func() bool {
		var err error
		state, err = b.Open(b.Context(), true)
		if err != nil && !fault.Retryable(err) {
			b.Fatal(err)
		}
		return err == nil
	})
	if err := b.Broken(); err != nil {
		b.Fatal(err)
	}
	return state
}

// append appends values that no other append has, and returns the last one.
func (b *logBench) append(count int) string {
	for range count {
		b.appendValue([]byte(fmt.Sprint(b.TransactionalID, "/", len(b.values))))
	}
	return b.values[len(b.values)-1]
}

func (b *logBench) appendValue(value []byte) {
	b.values = append(b.values, string(value))
	rec := &cdc.Record{Topic: b.Topic, Key: []byte("k"), Value: value, Time: time.UnixMilli(1_700_000_000_000), Committed: time.Now()}
	rec.Headers = []cdc.Header{{Key: "n", Value: fmt.Append(nil, len(b.values)-1)}}
	b.Append(rec, cdc.Ticket{Tx: uint64(len(b.values) - 1)})
}

// await takes what has ended until done says so.
func (b *logBench) await(done func() bool) {
	b.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		before := len(b.ended)
		b.ended = b.Appends(b.ended)
		for _, a := range b.ended[before:] {
			value := string(a.Record.Value)
			if value != b.values[a.Ticket.Tx] || a.Latency < 0 {
				b.Fatalf("the end of append %d: %+v", a.Ticket.Tx, a)
			}
			if _, twice := b.written[value]; twice {
				b.Fatalf("append %d ended twice", a.Ticket.Tx)
			}
			if a.Err == nil {
				b.proven, b.written[value] = true, a.Offset
			}
		}
		if done() {
			return
		}
		select {
		case <-b.Wake():
		case <-limit.C:
			b.Fatalf("%d of %d ended; broken: %v; stalled: %v", len(b.ended), len(b.values), b.Broken(), b.Stalled())
		}
	}
}

// all waits until everything has ended.
func (b *logBench) all() {
	b.Helper()
	b.until(func() bool { return len(b.ended) == len(b.values) })
}

// until is await for a writer that may be new. On a busy machine its first transaction can stay empty, or can't be read in time (see
// writer.prove), and is begun again.
func (b *logBench) until(done func() bool) {
	b.Helper()
	either := func() bool { return b.Broken() != nil || done() }
	began := time.Now()
	for b.await(either); time.Since(began) < patience; b.await(either) {
		if err := b.Broken(); !errors.Is(err, errNotCommitted) && (b.proven || !fault.Retryable(err) || !strings.Contains(err.Error(), "read what was committed")) {
			break
		}
		b.goOn()
	}
	b.await(done)
}

// settle waits until everything has ended, or the log is broken.
func (b *logBench) settle() {
	b.Helper()
	b.await(func() bool { return b.Broken() != nil || len(b.ended) == len(b.values) })
}

func (b *logBench) breaks() error {
	b.Helper()
	b.await(func() bool { return b.Broken() != nil })
	return b.Broken()
}

func every(*kgo.Record) bool { return true }

// read reads on to the end.
func (b *logBench) read() {
	b.Helper()
	waitFor(b, func() bool {
		at, err := b.Read(b.Context(), b.next, func(r *kgo.Record) bool {
			b.seen = append(b.seen, string(r.Value))
			return true
		})
		if b.next = at.Next; err != nil && !fault.Retryable(err) {
			b.Fatal(err)
		}
		return err == nil
	})
}

// forget has the next read begin at the start of a topic that has nothing of what was appended so far.
func (b *logBench) forget() { b.written, b.seen, b.next = map[string]int64{}, nil, 0 }

// goOn does what the holder of a broken log does: it fences the topic, reads what is committed, and appends the rest again.
func (b *logBench) goOn() {
	b.Helper()
	b.fence()
	b.read()
	b.await(func() bool { return true })
	left := b.Unwritten()
	for _, u := range left {
		if value := string(u.Record.Value); slices.Contains(b.seen, value) {
			b.written[value] = -1
			b.ended = append(b.ended, cdc.Appended{Ticket: u.Ticket, Record: u.Record})
		} else {
			b.Append(u.Record, u.Ticket)
		}
	}
}

// holds compares what the topic holds with want.
func (b *logBench) holds(want ...string) {
	b.Helper()
	b.read()
	if !slices.Equal(b.seen, want) {
		b.Fatalf("the topic holds %d records, want %d:\n%s\n%s", len(b.seen), len(want), brief(b.seen), brief(want))
	}
	for value, offset := range b.written {
		if !slices.Contains(b.seen, value) {
			b.Fatalf("%.20q is acknowledged at offset %d and is not in the topic", value, offset)
		}
	}
}

func brief(values []string) (out string) {
	for _, v := range values[max(0, len(values)-20):] {
		out += fmt.Sprintf(" %.20s", v)
	}
	return out
}

// holdCommit holds back the next end of a transaction, from when ended is closed until release is called.
func holdCommit(c *kfake.Cluster) (ended <-chan struct{}, release func()) {
	reached, goOn := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	c.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		if c.KeepControl(); !held.Swap(true) {
			close(reached)
			c.SleepControl(func() { <-goOn })
		}
		return nil, nil, false
	})
	return reached, func() { close(goOn) }
}

// severalRecords says whether a produce request has more than one record in a batch.
func severalRecords(req kmsg.Request) bool {
	for _, t := range req.(*kmsg.ProduceRequest).Topics { //nolint:errcheck // for the key Produce
		for _, p := range t.Partitions {
			var rb kmsg.RecordBatch
			if rb.ReadFrom(p.Records) == nil && rb.NumRecords > 1 {
				return true
			}
		}
	}
	return false
}

func holdsBytes(text string) func(kmsg.Request) bool {
	return func(req kmsg.Request) bool { return bytes.Contains(req.AppendTo(nil), []byte(text)) }
}
