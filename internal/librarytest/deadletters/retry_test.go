//go:build linux || darwin

package deadletters_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/testenv"
)

var errBroken = errors.New("broken")

// Two groups consume a topic. One fails for some messages until it is repaired.
func TestARetrySendsDeadLettersBackToTheirPlacesOnce(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 3)
	for _, rec := range []*kgo.Record{message("a", "a1"), message("a", "a2"), message("a", "a3!"), message("a", "a4"), message("a", "a5!"), message("b", "b1!!")} {
		rec.Partition, rec.Timestamp = 1, time.Now().Add(-24*time.Hour)
		w.produce(rec)
	}
	w.consume("stock", nil, nil).finish().end()
	var repaired atomic.Bool
	refuse := func(m inbox.Message) error {
		switch {
		case repaired.Load():
			return nil
		case strings.HasSuffix(string(m.Value), "!!"):
			return inbox.Permanent(errBroken)
		case strings.HasSuffix(string(m.Value), "!"):
			panic("broken")
		}
		return nil
	}
	pay := w.consume("payments", nil, refuse).finish()
	if got := w.effects("payments"); got != "a1 a2 a4" {
		t.Fatalf("effects before the retry: %s", got)
	}
	if got := w.letters(walpost.BadEventFilter{}); got != "a3! open attempts, a5! open attempts, b1!! open permanent" {
		t.Fatalf("letters: %s", got)
	}
	if got := w.letters(walpost.BadEventFilter{Group: "stock"}); got != "" {
		t.Errorf("letters of the other group: %s", got)
	}

	r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{DryRun: true})
	if r.Events != 3 || r.Topics[w.topic] != 3 || r.Delivered != 0 {
		t.Errorf("a dry run: %+v", r)
	}
	w.retry(walpost.BadEventFilter{Reason: "permanent"}, walpost.RetryOptions{}) // not repaired: it fails again
	pay.finish()
	if got := w.letters(walpost.BadEventFilter{}); got != "a3! open attempts, a5! open attempts, b1!! retried permanent, b1!! open permanent" {
		t.Fatalf("letters after a retry that failed: %s", got)
	}

	repaired.Store(true)
	if r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{}); r.Delivered != 3 || len(r.Refused) > 0 {
		t.Errorf("retry: %+v", r)
	}
	if r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{}); r.Events != 0 {
		t.Errorf("a second retry has %d events", r.Events)
	}
	pay.finish()
	if got := w.effects("payments"); !strings.HasPrefix(got, "a1 a2 a4 ") || strings.Count(got, "b1!!") != 1 || strings.Count(got, "a3!") != 1 ||
		strings.Count(got, "a5!") != 1 || strings.Index(got, "a3!") > strings.Index(got, "a5!") {
		t.Errorf("effects after the retry: %s", got)
	}

	// The group that had handled the messages got them again, in the partition of their key, and has recognised them.
	var again []string
	w.consume("stock", func(c *consumer.Config) { c.Order = consumer.ByPartition }, func(m inbox.Message) error {
		text := fmt.Sprintf("%s in %d", m.Value, m.Partition)
		for _, h := range m.Headers {
			if h.Key == "walpost.dead.timestamp" {
				if ms, err := strconv.ParseInt(string(h.Value), 10, 64); err != nil || time.Since(m.Time) > time.Hour || time.Since(time.UnixMilli(ms)) < 20*time.Hour {
					t.Errorf("the message of %s has the time %s", h.Value, m.Time)
				}
			} else if h.Key == "walpost.dead.position" && strings.HasPrefix(string(h.Value), "position:"+w.topic+"/1/") {
				text += " " + h.Key + "=position"
			} else {
				text += fmt.Sprintf(" %s=%s", h.Key, h.Value)
			}
		}
		again = append(again, text)
		return nil
	}).finish().end()
	one := func(value string) string {
		return value + " in 1 id=" + value[:1] + ":" + value + " walpost.dead.group=payments walpost.dead.position=position walpost.origin=dead_letter"
	}
	if want := []string{one("b1!!"), one("a3!"), one("a5!"), one("b1!!")}; !slices.Equal(again, want) {
		t.Errorf("the other group got %q, want %q", again, want)
	}
	if got := w.effects("stock"); len(strings.Fields(got)) != 6 {
		t.Errorf("effects of the other group: %s", got)
	}
}

// A retry was killed after it had sent a message back, and before its mark.
func TestAMessageThatWasSentBackTwiceHasOneEffect(t *testing.T) {
	for _, missing := range []inbox.MissingID{inbox.RefuseMissingID, inbox.PositionAsID} {
		t.Run("missing id "+string(missing), func(t *testing.T) {
			w := newWorld(t, testenv.Kafka(t), 1)
			rec := message("a", "a1")
			if missing == inbox.PositionAsID {
				rec.Headers = nil
			}
			w.produce(rec)
			var repaired atomic.Bool
			m := w.consume("payments", func(c *consumer.Config) {
				if missing == inbox.PositionAsID {
					c.MissingID, c.IDHeader = missing, "event-id"
				}
			}, func(inbox.Message) error {
				if repaired.Load() {
					return nil
				}
				return errBroken
			}).finish()
			topics := w.open("")
			found, err := topics.Select(&walpost.BadEventFilter{})
			if err != nil || len(found) != 1 {
				t.Fatalf("%d letters, %v", len(found), err)
			}
			steps, value, headers, err := topics.History(t.Context(), found[0])
			if err != nil {
				t.Fatal(err)
			}
			sent := &kgo.Record{Key: found[0].Key, Value: value}
			for _, h := range headers {
				sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
			}
			sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: "walpost.dead.position", Value: []byte(steps[0].Letter.Start)})
			repaired.Store(true)
			w.produce(sent) // by the retry that was killed
			if r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{}); r.Delivered != 1 {
				t.Errorf("%+v", r)
			}
			m.finish()
			if got := w.effects("payments"); got != "a1" {
				t.Errorf("effects: %s", got)
			}
		})
	}
}

func TestADroppedLetterIsNotRetried(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.produce(message("a", "a1"))
	w.produce(message("b", "b1"))
	pay := w.consume("payments", nil, func(inbox.Message) error { return errBroken })
	pay.finish().end()
	a := "a"
	topics := w.open("")
	found, err := topics.Select(&walpost.BadEventFilter{Key: &a})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := topics.Drop(t.Context(), found, "INC-17"); n != 1 || err != nil {
		t.Fatalf("dropped %d: %v", n, err)
	}
	if got := w.letters(walpost.BadEventFilter{}); got != "a1 dropped attempts, b1 open attempts" {
		t.Errorf("letters: %s", got)
	}
	if r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{}); r.Delivered != 1 {
		t.Errorf("%+v", r)
	}
	w.consume("payments", nil, nil).finish()
	if got := w.effects("payments"); got != "b1" {
		t.Errorf("effects: %s", got)
	}
}

// What the topic no longer takes stays dead, and another topic can take it.
func TestALetterThatIsRefusedStaysDeadAndCanGoToAnotherTopic(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	rec := message("a", "a1")
	rec.Value = fmt.Appendf(nil, "%x", testenv.Incompressible(5000))
	w.produce(rec)
	w.consume("payments", nil, func(inbox.Message) error { return errBroken }).finish().end()
	w.kafka.Configure(t, "max.message.bytes", "1000", w.topic)
	r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{})
	if r.Delivered != 0 || len(r.Refused) != 1 || r.Refused[0].Reason != "too_large" || r.Refused[0].Attempts != 2 {
		t.Fatalf("%.500s", fmt.Sprintf("%+v", r))
	}
	if got := w.letters(walpost.BadEventFilter{State: deadletter.Open}); !strings.HasSuffix(got, " open attempts") {
		t.Errorf("letters: %.100s", got)
	}
	other := w.kafka.Topic(t, 1, nil)
	if !strings.Contains(r.Refused[0].Error, "raise max.message.bytes of the topic") {
		t.Errorf("it is refused without a hint: %s", r.Refused[0].Error)
	}
	if r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{ToTopic: other}); r.Delivered != 1 || r.Topics[other] != 1 {
		t.Errorf("%+v", r)
	}
	w.consume("payments", func(c *consumer.Config) { c.Topics = []string{w.topic, other} }, nil)
	w.eventually("the group gets the message of the other topic", func() (string, bool) {
		got := w.effects("payments")
		return got, got == string(rec.Value)
	})
}

// Two groups, whose messages have no ids. One has handled the message that the other one refuses.
func TestAMessageWithoutAnIDHasOneEffectInEachGroup(t *testing.T) {
	position := func(header string) func(*consumer.Config) {
		return func(c *consumer.Config) { c.MissingID, c.IDHeader = inbox.PositionAsID, header }
	}
	fails := func(inbox.Message) error { return errBroken }
	for name, with := range map[string]func(*consumer.Config){"payments refuses it": nil, "payments fails": position("event-id")} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testenv.Kafka(t), 1)
			w.produce(&kgo.Record{Value: []byte("naked")})
			w.consume("stock", position("id"), nil).finish().end()
			w.consume("payments", with, fails).finish().end()
			w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{})
			w.consume("payments", position("event-id"), fails).finish().end() // once more: its letter has the first position, too
			if r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{}); r.Delivered != 1 {
				t.Fatalf("%+v", r)
			}
			w.consume("payments", position("event-id"), nil).finish()
			w.consume("stock", position("id"), nil).finish()
			if pay, stock := w.effects("payments"), w.effects("stock"); pay != "naked" || stock != "naked" {
				t.Errorf("effects: payments %q, stock %q", pay, stock)
			}
		})
	}
}

// A group that has handled an old message may have forgotten it.
func TestAnOldMessageIsNotSentBackToEveryGroup(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	other := w.kafka.Topic(t, 1, nil)
	for id, age := range map[string]time.Duration{"old": 15, "young": 13} {
		rec := message(id, id)
		rec.Timestamp = time.Now().Add(-age * 24 * time.Hour)
		w.produce(rec)
	}
	w.consume("payments", nil, func(inbox.Message) error { return errBroken }).finish().end()
	for _, dry := range []bool{true, false} {
		r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{DryRun: dry})
		if len(r.Refused) != 1 || r.Refused[0].EventID != "old:old" || r.Refused[0].Reason != "too_old" || r.Topics[w.topic] != 1 {
			t.Fatalf("%+v", r)
		}
	}
	if got := w.letters(walpost.BadEventFilter{State: deadletter.Open}); got != "old open attempts" {
		t.Errorf("open letters: %s", got)
	}
	for _, opts := range []walpost.RetryOptions{{ToTopic: other, DryRun: true}, {MaxAge: 16 * 24 * time.Hour}} {
		if r := w.retry(walpost.BadEventFilter{}, opts); len(r.Refused) > 0 || r.Topics[other]+r.Delivered != 1 {
			t.Errorf("%+v: %+v", opts, r)
		}
	}
}

// A producer whose clock was fast does not make its messages young: they are at least as old as their letters.
func TestAMessageOfTheFutureIsAsOldAsItsLetter(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	for id, age := range map[string]time.Duration{"old": 15, "young": 13} {
		rec := &kgo.Record{Topic: w.dead, Value: []byte(id), Timestamp: time.Now().Add(-age * 24 * time.Hour)}
		future := strconv.FormatInt(time.Now().Add(1000*time.Hour).UnixMilli(), 10)
		for _, h := range [][2]string{
			{"walpost.dead.reason", "attempts"},
			{"walpost.dead.topic", w.topic},
			{"walpost.dead.partition", "0"},
			{"walpost.dead.offset", "5"},
			{"walpost.dead.timestamp", future},
			{"walpost.dead.id", id},
			{"walpost.dead.group", "payments"},
		} {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
		}
		w.produce(rec)
	}
	r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{})
	if len(r.Refused) != 1 || r.Refused[0].EventID != "old" || r.Refused[0].Reason != "too_old" || r.Delivered != 1 {
		t.Errorf("%+v", r)
	}
}

// What can't be sent back holds up no other letter, and makes no topic.
func TestALetterWithoutAPlaceStaysDead(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	letter := func(topic, partition, id string) {
		rec := &kgo.Record{Topic: w.dead, Value: []byte(id)}
		for _, h := range [][2]string{{"walpost.dead.reason", "attempts"}, {"walpost.dead.topic", topic}, {"walpost.dead.partition", partition}, {"walpost.dead.offset", "5"}, {"walpost.dead.id", id}, {"walpost.dead.group", "payments"}} {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
		}
		w.produce(rec)
	}
	gone, typo := w.topic+"-gone", w.topic+"-typo"
	letter(gone, "0", "gone")
	letter(w.topic, "3", "partition")
	letter(w.topic, "0", "good")
	topics := func() (names []string) {
		all, err := kadm.NewClient(w.client).ListTopics(t.Context(), gone, typo)
		if err != nil {
			t.Fatal(err)
		}
		for _, topic := range all {
			if topic.Err == nil {
				names = append(names, topic.Topic)
			}
		}
		return names
	}
	if r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{ToTopic: typo}); len(r.Refused) != 3 || r.Delivered != 0 || !strings.Contains(r.Refused[0].Error, "topic "+typo+" does not exist") {
		t.Errorf("a topic that does not exist: %+v", r)
	}
	r := w.retry(walpost.BadEventFilter{}, walpost.RetryOptions{})
	var refused []string
	for _, e := range r.Refused {
		refused = append(refused, e.EventID+": "+e.Error)
	}
	if want := []string{
		"partition: topic " + w.topic + " has no partition 3: pass a topic with --to-topic", "gone: topic " + gone + " does not exist: create it, or pass another one with --to-topic",
	}; r.Delivered != 1 || !slices.Equal(refused, want) {
		t.Errorf("delivered %d, refused %q, want %q", r.Delivered, refused, want)
	}
	if made := topics(); made != nil {
		t.Errorf("retry made the topics %v", made)
	}
	if got := w.letters(walpost.BadEventFilter{State: deadletter.Open}); got != "partition open attempts, gone open attempts" {
		t.Errorf("open letters: %s", got)
	}
}
