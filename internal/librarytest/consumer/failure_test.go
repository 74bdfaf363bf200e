//go:build linux || darwin

package consumer_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/testenv"
)

func TestAMessageThatFailsBecomesADeadLetterAndItsKeyGoesOn(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1", "a:2", "b:1", "a:3") // the poison a:2 has others behind it
	m := w.start(w.config(func(_ context.Context, m inbox.Message) error {
		if string(m.Value) == "a:2" {
			return fmt.Errorf("no account: %w", errBroken)
		}
		return nil
	}))
	w.sees("a:3", "b:1")
	w.commits(0, 4)
	if n := w.count("a:2"); n != 3 {
		t.Errorf("%d attempts", n)
	}
	if seen := w.all(); slices.Index(seen, "a:3") < slices.Index(seen, "a:2")+2 {
		t.Errorf("a:3 was handled before a:2 was dead: %q", seen)
	}
	letter := w.letters(1)[0]
	got := map[string]string{}
	for _, h := range letter.Headers {
		got[h.Key] = string(h.Value)
	}
	timestamp := got["walpost.dead.timestamp"]
	delete(got, "walpost.dead.timestamp")
	want := map[string]string{
		"id": "a:2", "walpost.dead.reason": "attempts", "walpost.dead.error": "no account: broken", "walpost.dead.topic": w.topic,
		"walpost.dead.partition": "0", "walpost.dead.offset": "1", "walpost.dead.attempts": "3", "walpost.dead.id": "a:2", "walpost.dead.group": w.name,
		"walpost.dead.position": "position:" + w.topic + "/0/1@" + timestamp,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || timestamp == "" || string(letter.Key) != "a" || string(letter.Value) != "a:2" {
		t.Errorf("letter %q %q %v\nwant %v", letter.Key, letter.Value, got, want)
	}
	if _, _, err := deadletter.Decode(letter); !errors.Is(err, deadletter.ErrForeign) {
		t.Errorf("walpost dead takes the letter for one of the relay: %v", err)
	}
	if s := m.Stats(); s.Handled != 3 || s.Failed != 3 || s.Retried != 2 || s.Dead != 1 || s.Uncounted != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAPoisonAtTheEndOfAPartitionIsCommitted(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1", "a:2")
	w.start(w.config(func(_ context.Context, m inbox.Message) error {
		if string(m.Value) == "a:2" {
			return errBroken
		}
		return nil
	}))
	w.commits(0, 2)
	w.letters(1)
}

func TestAPanicIsAFailureWithItsStack(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1", "a:2")
	w.start(w.config(func(_ context.Context, m inbox.Message) error {
		if string(m.Value) == "a:1" {
			explode()
		}
		return nil
	}))
	w.sees("a:2")
	letter := w.letters(1)[0]
	if text := header(letter, "walpost.dead.error"); text != "the handler panicked: assignment to entry in nil map" {
		t.Errorf("error %q", text)
	}
	first, _, _ := strings.Cut(header(letter, "walpost.dead.stack"), "\n\t")
	if first, _, _ = strings.Cut(first, "("); !strings.HasSuffix(first, "consumer_test.explode") {
		t.Errorf("the stack begins with %q", header(letter, "walpost.dead.stack"))
	}
}

func explode() {
	var m map[string]int
	m["a"] = 1 //nolint:staticcheck // the panic is the point
}

func TestAPermanentErrorNeedsNoSecondAttempt(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1", "a:2")
	w.start(w.config(func(_ context.Context, m inbox.Message) error {
		if string(m.Value) == "a:1" {
			return fmt.Errorf("decode: %w", inbox.Permanent(errBroken))
		}
		return nil
	}))
	w.commits(0, 2)
	if l := w.letters(1)[0]; header(l, "walpost.dead.reason") != "permanent" || header(l, "walpost.dead.attempts") != "1" || w.count("a:1") != 1 {
		t.Errorf("%d attempts, headers %v", w.count("a:1"), l.Headers)
	}
}

func TestARetryableErrorDoesNotCount(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1", "a:2")
	var calls atomic.Int32
	m := w.start(w.config(func(_ context.Context, m inbox.Message) error {
		if string(m.Value) == "a:1" && calls.Add(1) <= 10 {
			return fmt.Errorf("service: %w", inbox.Retryable(errBroken))
		}
		return nil
	}))
	w.commits(0, 2)
	if s := m.Stats(); s.Handled != 2 || s.Failed != 0 || s.Uncounted != 10 || s.Dead != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAMessageWithoutAnIDIsRefusedOrGetsItsPlace(t *testing.T) {
	for _, missing := range []inbox.MissingID{inbox.RefuseMissingID, inbox.PositionAsID} {
		t.Run(string(missing), func(t *testing.T) {
			w := newWorld(t, testenv.Kafka(t), 1)
			w.send(0, "a:1")
			w.produce(&kgo.Record{Key: []byte("a"), Value: []byte("naked"), Timestamp: time.UnixMilli(1770000000123)})
			w.send(0, "a:2")
			cfg := w.config(func(_ context.Context, m inbox.Message) error { w.saw("id " + m.ID); return nil })
			cfg.MissingID = missing
			w.start(cfg)
			w.sees("a:1", "a:2")
			w.commits(0, 3)
			if missing == inbox.PositionAsID {
				w.sees("id position:" + w.topic + "/0/1@1770000000123")
				return
			}
			if w.count("naked") > 0 {
				t.Error("the handler got a message without an id")
			}
			if l := w.letters(1)[0]; header(l, "walpost.dead.reason") != "missing_id" || string(l.Value) != "naked" {
				t.Errorf("%q %v", l.Value, l.Headers)
			}
		})
	}
}

func TestAMissingDeadLetterTopicIsWaitedFor(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.dead = w.topic + "-dead"
	w.send(0, "a:1", "b:1", "a:2")
	m := w.start(w.config(func(_ context.Context, m inbox.Message) error {
		if string(m.Value) == "a:1" {
			return errBroken
		}
		return nil
	}))
	w.sees("b:1")
	w.eventually("a complaint", func() bool { return strings.Contains(w.log.String(), "a dead letter cannot be written") })
	if n := m.Stats().DeadWaiting; n != 1 || w.committed(0) > 0 || w.count("a:2") > 0 {
		t.Errorf("%d wait, offset %d is committed, a:2 was handled %d times", n, w.committed(0), w.count("a:2"))
	}
	w.k.CreateTopic(t, w.dead, 1, nil)
	w.letters(1)
	w.sees("a:2")
	w.commits(0, 3)
	if n := w.count("a:1"); n != 3 {
		t.Errorf("a:1 was handled %d times, although only its letter waited", n)
	}
}

// The headers make a dead letter larger than its message.
func TestADeadLetterThatIsTooLargeLeavesOutItsErrorOrWaits(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.dead = w.k.Topic(t, 1, map[string]string{"max.message.bytes": "4000"})
	for i, size := range []int{3000, 5000} {
		value := make([]byte, size) // it does not compress
		_, _ = rand.Read(value)
		w.produce(&kgo.Record{Key: fmt.Append(nil, i), Value: value, Headers: []kgo.RecordHeader{{Key: "id", Value: fmt.Append(nil, i)}}})
	}
	m := w.start(w.config(func(context.Context, inbox.Message) error {
		text := ""
		for len(text) < 2000 {
			text += rand.Text()
		}
		return inbox.Permanent(errors.New(text))
	}))
	l := w.letters(1)[0]
	if header(l, "walpost.dead.left_out") != "error, stack" || header(l, "walpost.dead.error") != "" || header(l, "walpost.dead.reason") != "permanent" || len(l.Value) != 3000 {
		t.Errorf("%d bytes %v", len(l.Value), l.Headers)
	}
	w.commits(0, 1)
	w.eventually("a complaint", func() bool { return strings.Contains(w.log.String(), "raise max.message.bytes") })
	if s := m.Stats(); s.DeadWaiting != 1 || s.Dead != 1 {
		t.Errorf("%+v", s)
	}
	w.ask(func(adm *kadm.Client) error {
		_, err := adm.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: kadm.StringPtr("9000")}}, w.dead)
		return err
	})
	// The brokers take the new limit at some moment: if that is between the letter with its error and the one without, the
	// second one is the letter.
	l = w.letters(2)[1]
	if left, text := header(l, "walpost.dead.left_out"), header(l, "walpost.dead.error"); len(l.Value) != 5000 || (left == "") != (text != "") {
		t.Errorf("%d bytes %v", len(l.Value), l.Headers)
	}
	w.commits(0, 2)
}

func TestWithoutADeadLetterTopicAMessageIsTriedUntilItSucceeds(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1", "a:2")
	var calls atomic.Int32
	cfg := w.config(func(_ context.Context, m inbox.Message) error {
		if string(m.Value) == "a:1" && calls.Add(1) < 10 {
			return inbox.Permanent(errBroken)
		}
		return nil
	})
	cfg.DeadLetterTopic = ""
	w.start(cfg)
	w.commits(0, 2)
	if n := w.count("a:1"); n != 10 {
		t.Errorf("%d attempts", n)
	}
}

func TestABatchThatFailsIsHandledOneByOne(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1", "a:2", "b:1", "a:3", "b:2")
	cfg := w.config(nil)
	cfg.Handler = nil
	cfg.BatchHandler = func(_ context.Context, batch []inbox.Message) error {
		var words []string
		for _, m := range batch {
			words = append(words, string(m.Value))
		}
		w.saw(strings.Join(words, " "))
		if slices.Contains(words, "a:2") {
			return errBroken
		}
		return nil
	}
	m := w.start(cfg)
	w.commits(0, 5)
	if l := w.letters(1)[0]; string(l.Value) != "a:2" || header(l, "walpost.dead.attempts") != "3" {
		t.Errorf("%q %v", l.Value, l.Headers)
	}
	if w.count("a:2") != 3 || m.Stats().Split == 0 {
		t.Errorf("calls: %q", w.all())
	}
}

// The key that fails waits. Others of its partition do not, unless the order is by partition.
func TestAFailureHoldsUpItsKeyOnly(t *testing.T) {
	for _, order := range []consumer.Order{consumer.ByKey, consumer.ByPartition} {
		w := newWorld(t, testenv.Kafka(t), 1)
		w.send(0, "a:1", "a:2", "b:1")
		w.produce(&kgo.Record{Value: []byte("keyless"), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("x")}}})
		open := make(gate)
		cfg := w.config(func(_ context.Context, m inbox.Message) error {
			select {
			case <-open:
				return nil
			default:
				if string(m.Value) == "a:1" {
					return inbox.Retryable(errBroken)
				}
				return nil
			}
		})
		cfg.Order = order
		w.start(cfg)
		w.eventually("some attempts", func() bool { return w.count("a:1") > 3 })
		if order == consumer.ByKey {
			w.sees("b:1", "keyless")
		} else if w.count("b:1") > 0 {
			t.Error("b:1 overtook a:1 in an order by partition")
		}
		if w.count("a:2") > 0 || w.committed(0) > 0 {
			t.Errorf("a:2 was handled %d times, offset %d is committed", w.count("a:2"), w.committed(0))
		}
		close(open)
		w.commits(0, 4)
	}
}

// The window of a partition is bounded: a message that does not finish stops the fetching.
func TestAFullBufferPausesThePartition(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 2)
	var words []string
	for i := range 200 {
		words = append(words, fmt.Sprintf("k%d:1", i))
	}
	w.send(0, words...)
	open := make(gate)
	cfg := w.config(func(ctx context.Context, m inbox.Message) error {
		if string(m.Value) == "k0:1" {
			return open.wait(ctx)
		}
		return nil
	})
	cfg.Buffer = 20
	m := w.start(cfg)
	stats := func() (p consumer.PartitionStats) {
		for _, p := range m.Stats().Partitions {
			if p.Partition == 0 {
				return p
			}
		}
		return p
	}
	w.eventually("the pause", func() bool { return stats().Paused })
	w.send(1, "other:1")
	w.sees("other:1")
	w.eventually("the lag", func() bool { return stats().Lag == 200 })
	if p := stats(); p.Buffered >= 40 || p.Oldest <= 0 {
		t.Errorf("%+v", p)
	}
	close(open)
	w.commits(0, 200)
	w.eventually("no lag", func() bool { p := stats(); return p.Lag == 0 && p.Buffered == 0 && !p.Paused && p.Oldest == 0 })
}

func TestABufferOfBytesPausesThePartition(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	for i := range 30 {
		value := make([]byte, 10_000) // it does not compress
		_, _ = rand.Read(value)
		w.produce(&kgo.Record{Key: fmt.Append(nil, i), Value: value, Headers: []kgo.RecordHeader{{Key: "id", Value: fmt.Append(nil, i)}}})
	}
	open := make(gate)
	cfg := w.config(func(ctx context.Context, m inbox.Message) error { return open.wait(ctx) })
	cfg.BufferBytes = 100_000
	cfg.ClientOptions = append(cfg.ClientOptions, kgo.FetchMaxPartitionBytes(15_000))
	m := w.start(cfg)
	w.eventually("the pause", func() bool { p := m.Stats().Partitions; return len(p) == 1 && p[0].Paused })
	if n := m.Stats().Partitions[0].Buffered; n > 15 {
		t.Errorf("%d messages of 10 kB are buffered", n)
	}
	close(open)
	w.commits(0, 30)
}

func TestTheScopeOfATopicComesFromTheConfig(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1")
	cfg := w.config(func(_ context.Context, m inbox.Message) error { w.saw("scope " + m.Scope); return nil })
	cfg.Scope = func(topic string) string { return "before " + topic }
	w.start(cfg)
	w.sees("scope before " + w.topic)
}
