package badevents

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

func readAll(client *kgo.Client, topic string, partition int32, each func(rec *kgo.Record)) *kafka.Reader {
	return &kafka.Reader{Client: client, Topic: topic, Partition: partition, Each: func(rec *kgo.Record) error { each(rec); return nil }}
}

// noise is a text that hardly compresses.
func noise(n int) string {
	b := make([]byte, n/2)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return hex.EncodeToString(b)
}

func TestTheTopicIsReadAndFiltered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.letter("a", "1", "x", "A"), w.letter("b", "2", "y", "B"), w.row("c", "", "1", "C")
	b.Reason, b.Table = cdc.InvalidRecord, "public.second"
	w.write(a, b, c)
	topics := w.open()
	one := "1"
	for _, f := range []struct {
		filter Filter
		want   string
	}{
		{Filter{}, "a b c"},
		{Filter{Reason: cdc.InvalidRecord}, "b"},
		{Filter{Tables: []string{"public.outbox", "public.third"}}, "a c"},
		{Filter{Topic: w.prefix + ".x"}, "a"},
		{Filter{Key: &one}, "a c"},
		{Filter{Key: &one, State: deadletter.Retried}, ""},
		{Filter{Since: b.CommitTime}, "b c"},
		{Filter{Until: b.CommitTime}, "a"},
		{Filter{Tokens: []string{"t-c", "t-a"}}, "a c"},
	} {
		got := ""
		for _, e := range w.entries(topics, &f.filter) {
			got += " " + e.ID
		}
		if got = strings.TrimSpace(got); got != f.want {
			t.Errorf("%+v: %s, want %s", f.filter, got, f.want)
		}
	}
	if _, err := topics.Select(&Filter{Tokens: []string{"t-a", "t-x"}}); err == nil || !fault.Misconfigured(err) {
		t.Errorf("an unknown token: %v", err)
	}
	steps, value, headers, err := topics.History(t.Context(), w.entries(topics, &Filter{Tokens: []string{"t-a"}})[0])
	if err != nil || len(steps) != 1 || string(value) != "A" || len(headers) != 1 || headers[0].Key != "id" {
		t.Errorf("history: %v %q %v %v", steps, value, headers, err)
	}
}

// Two databases have a table of the same name, and their relays share the topics.
func TestTheEventsOfOtherRelaysAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.topic("x", 1, nil)
	w.kafka.CreateTopic(t, w.cfg.Parking, 1, nil)
	of := func(l *deadletter.Letter, name, database string) *deadletter.Letter {
		l.Name, l.Database = name, database
		return l
	}
	w.write(
		of(w.letter("own", "1", "x", "A"), "shop.walpost", "shop"),
		of(w.row("other", "x", "1", "D"), "stock.walpost", "stock"),
		of(w.letter("same", "1", "x", "E"), "shop.walpost", "stock"),
	)
	parked := of(w.letter("parked", "1", "x", "F"), "stock.walpost", "stock")
	rec, err := parked.Encode(w.cfg.Parking)
	if err != nil {
		t.Fatal(err)
	}
	w.produce(rec)

	topics := w.open()
	names := func(f *Filter) (got string) {
		f.State = deadletter.Open
		for _, e := range w.entries(topics, f) {
			got += e.ID + " "
		}
		return strings.TrimSpace(got)
	}
	if got := names(&Filter{}); got != "own" {
		t.Errorf("the relay's own: %s", got)
	}
	if said := strings.Join(w.said, "\n"); said != "1 events of relay shop.walpost, database stock are left out (--relay selects them)\n"+
		"2 events of relay stock.walpost, database stock are left out (--relay selects them)" {
		t.Errorf("said %s", said)
	}
	if got := names(&Filter{Relay: "stock.walpost"}); got != "other parked" {
		t.Errorf("of another relay: %s", got)
	}
	if got := names(&Filter{All: true}); got != "own other same parked" {
		t.Errorf("of all relays: %s", got)
	}
	for token, hint := range map[string]string{"t-other": "--relay=", "t-parked": "only walpost run with this name", "t-same": "--relay="} {
		_, err := topics.Select(&Filter{Tokens: []string{token}})
		if err == nil || !fault.Misconfigured(err) || !strings.Contains(err.Error(), "database stock, but the configuration is for relay shop.walpost") || !strings.Contains(fault.Hint(err), hint) {
			t.Errorf("%s: %v %s", token, err, fault.Hint(err))
		}
	}
	events := w.entries(topics, nil)
	if report, err := topics.Retry(t.Context(), events, RetryOptions{}); err != nil || report.Delivered != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if r, err := topics.Release(t.Context(), events, false); err != nil || r.Keys != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if got := w.records(x); got != "own=A" {
		t.Errorf("delivered %s", got)
	}
	// The ids of another database say nothing about the rows of this one. A relay of this database may have had another name.
	w.write(of(w.letter("renamed", "1", "x", "G"), "shop.before", "shop"))
	waiting := w.waiting(true)
	if ids, err := waiting.IDs(t.Context()); err != nil || !slices.Equal(ids, []string{"renamed"}) {
		t.Errorf("%q, %v", ids, err)
	}
	if c := waiting.Count(); c != (Count{}) {
		t.Errorf("%+v of this relay are open", c)
	}
	w.cfg.Name, w.cfg.Database = "", ""
	_, err = w.open().Select(&Filter{Tokens: []string{"t-other"}})
	if err == nil || !strings.Contains(err.Error(), "the configuration does not say which relay it is for") {
		t.Error(err)
	}
}

func TestAForeignTopicIsRefusedAndAMissingOneHasNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.produce(&cdc.Record{Topic: w.prefix, Value: []byte("an order"), Time: began})
	if _, err := Open(t.Context(), w.cfg); err == nil || !fault.Misconfigured(err) {
		t.Errorf("foreign: %v", err)
	}
	w.write(w.letter("a", "1", "x", "A"))
	if topics := w.open(); topics.Dead.Fold.Foreign != 1 || len(w.entries(topics, nil)) != 1 {
		t.Errorf("mixed: %+v", topics.Dead.Fold)
	}
	w.cfg.Kafka.DeadLetters = w.prefix + ".none"
	if topics := w.open(); !topics.Dead.Missing || len(w.entries(topics, nil)) > 0 {
		t.Errorf("missing: %+v", topics.Dead)
	}
	if topics, err := kafka.DescribeTopic(t.Context(), w.client, w.prefix+".none"); err != nil || topics.Err == nil {
		t.Errorf("reading has made the topic: %v, %v", topics, err)
	}
}

// Letters reads on from where it was, and notices that the topic was created again.
func TestReadingGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write(w.letter("a", "1", "x", "A"), w.letter("b", "1", "x", "B"))
	l := w.open().Dead
	w.write(w.letter("c", "1", "x", "C"))
	before := l.read
	if err := l.Read(t.Context()); err != nil || len(l.Fold.Entries()) != 3 || l.read != before+1 {
		t.Fatalf("%v, %d entries, %d records read after %d", err, len(l.Fold.Entries()), l.read, before)
	}
	w.deleteTopic()
	w.kafka.CreateTopic(t, w.prefix, 1, nil)
	w.client = w.kafka.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner())) // the former one remembers the former topic
	w.write(w.letter("d", "1", "x", "D"))
	if err := l.Read(t.Context()); err != nil || len(l.Fold.Entries()) != 1 || l.Fold.Entries()[0].ID != "d" {
		t.Errorf("%v, %+v", err, l.Fold.Entries())
	}
}

// A retry delivers each event once, in order, and says what it did in the topic. What is refused again stays dead, with the new error.
func TestARetryDeliversOnceAndInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.topic("x", 3, nil)
	late := w.letter("late", "1", "x", "L") // the brokers refused it after the next letters were written
	refused := w.letter("big", "1", "x", noise(4<<20))
	lost := w.letter("lost", "1", "x", "P")
	lost.Partition, lost.Reason = 9, cdc.InvalidRecord
	bare := w.row("bare", "", "1", "R")
	w.write(w.row("c", "x", "1", "C"), w.letter("a", "1", "x", "A"), late, refused, lost, bare)
	for i := range 450 { // more than two chunks
		w.write(w.letter(fmt.Sprint(i), "1", "x", fmt.Sprint("v", i)))
	}
	topics := w.open()
	events := w.entries(topics, nil)
	opts := RetryOptions{DryRun: true}
	report, err := topics.Retry(t.Context(), events, opts)
	if err != nil || report.Events != 456 || report.Delivered != 0 || report.Topics[x] != 455 || len(report.Refused) != 1 {
		t.Errorf("dry run: %+v, %v", report, err)
	}
	if got := w.records(x); got != "" {
		t.Errorf("a dry run delivered %s", got)
	}
	opts.DryRun = false
	report, err = topics.Retry(t.Context(), events, opts)
	if err != nil || report.Delivered != 453 || len(report.Refused) != 3 {
		t.Fatalf("%+v, %v", report, err)
	}
	want := []string{"late=L", "c=C", "a=A"}
	for i := range 450 {
		want = append(want, fmt.Sprintf("%d=v%d", i, i))
	}
	if got := w.records(x); got != strings.Join(want, " ") {
		t.Errorf("delivered %s\nwant %s", got, strings.Join(want, " "))
	}
	reasons := map[string]cdc.Reason{}
	for _, e := range w.entries(w.open(), nil) {
		reasons[e.ID] = e.Reason
		if e.Attempts != 2 || e.Version != "test" {
			t.Errorf("%+v", e)
		}
	}
	if len(reasons) != 3 || reasons["big"] != cdc.TooLarge || reasons["lost"] != cdc.InvalidRecord || reasons["bare"] != cdc.Unroutable {
		t.Errorf("still dead: %v", reasons)
	}
	// A second retry of the first events, by what the first command knew, delivers nothing but what was refused.
	if report, err = topics.Retry(t.Context(), events, RetryOptions{}); err != nil || report.Delivered != 0 || len(report.Refused) != 3 {
		t.Errorf("second retry: %+v, %v", report, err)
	}
	// The causes are mended.
	w.kafka.Configure(t, "max.message.bytes", "7000000", x)
	w.kafka.Grow(t, 10, x)
	w.route("other")
	rows := w.topic("rows", 1, nil)
	topics = w.open()
	if report, err = topics.Retry(t.Context(), w.entries(topics, nil), RetryOptions{}); err != nil || report.Delivered != 3 || len(report.Refused) != 0 {
		t.Errorf("mended: %+v, %v", report, err)
	}
	if got := w.records(rows); got != "bare=R" {
		t.Errorf("topic rows: %s", got)
	}
	if left := w.entries(w.open(), nil); len(left) != 0 {
		t.Errorf("still open: %+v", left)
	}
}

func TestARetryCanGoToAnotherTopic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.letter("a", "1", "two words", "A")
	l.Reason, l.Partition = cdc.InvalidTopic, 7
	// Rows are routed anew: one has a topic, one has none, and one has a topic that Kafka does not allow.
	w.write(l, w.row("b", "x", "2", "B"), w.row("c", "", "2", "C"), w.row("d", "two words", "2", "D"))
	other := w.topic("other", 1, nil)
	topics := w.open()
	if report, err := topics.Retry(t.Context(), w.entries(topics, &Filter{Tokens: []string{"t-a", "t-c", "t-d"}}), RetryOptions{}); err != nil || len(report.Refused) != 3 || report.Refused[2].Reason != cdc.InvalidTopic {
		t.Errorf("%+v, %v", report, err)
	}
	w.cfg.Router.SendInstead(other)
	topics = w.open()
	if report, err := topics.Retry(t.Context(), w.entries(topics, nil), RetryOptions{ToTopic: other}); err != nil || report.Delivered != 4 {
		t.Errorf("%+v, %v", report, err)
	}
	if got := w.records(other) + ", " + w.states(); got != "a=A b=B c=C d=D, a retried 2, b retried 1, c retried 2, d retried 2" {
		t.Error(got)
	}
}

func TestDroppedEventsStayDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.topic("x", 1, nil)
	w.write(w.letter("a", "1", "x", "A"), w.letter("b", "1", "x", "B"))
	topics := w.open()
	all := w.entries(topics, nil)
	if n, err := topics.Drop(t.Context(), all[:1], "a test of the shop"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := topics.Drop(t.Context(), all[:1], "again"); n != 0 || err != nil {
		t.Error(n, err)
	}
	if report, err := topics.Retry(t.Context(), all, RetryOptions{}); err != nil || report.Delivered != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if got := w.records(x) + ", " + w.states(); got != "b=B, a dropped 1, b retried 1" {
		t.Error(got)
	}
	if e := w.open().Dead.Fold.Entry("t-a"); e.Why != "a test of the shop" {
		t.Errorf("%+v", e)
	}
}

// The second of two retries goes on, and the first one stops: no event is delivered by both in turn.
func TestTheNewestRetryWorks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write(w.letter("a", "1", "missing", "A"), w.letter("b", "1", "missing", "B"))
	first, second := w.open(), w.open()
	ended := make(chan error, 1)
	go func() {
		_, err := first.Retry(t.Context(), w.entries(first, nil), RetryOptions{})
		ended <- err
	}()
	for give := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // until the first one waits for the topic
		w.mu.Lock()
		waits := slices.ContainsFunc(w.said, func(text string) bool { return strings.Contains(text, "does not exist") })
		w.mu.Unlock()
		if waits {
			break
		}
		if time.Now().After(give) {
			t.Fatal("the first retry does not say that it waits")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if err := <-ended; !errors.Is(err, errOther) {
			t.Errorf("the first retry: %v", err)
		}
		w.topic("missing", 1, nil)
	}()
	report, err := second.Retry(ctx, w.entries(second, nil), RetryOptions{})
	cancel()
	if err != nil || report.Delivered != 2 {
		t.Errorf("%+v, %v", report, err)
	}
	if got := w.records(w.prefix+".missing") + ", " + w.states(); got != "a=A b=B, a retried 1, b retried 1" {
		t.Error(got)
	}
	if f := w.open().Dead.Fold; len(f.Working) != 0 {
		t.Errorf("still working: %v", f.Working)
	}
}

// An interrupted retry has marked what it delivered.
func TestAnInterruptedRetryGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.topic("x", 1, nil)
	var want []string
	for i := range 500 {
		w.write(w.letter(fmt.Sprint(i), "1", "x", "v"))
		want = append(want, fmt.Sprint(i, "=v"))
	}
	delivered := 0
	for stop := int64(1); ; stop += 150 {
		ctx, cancel := context.WithCancel(t.Context())
		w.cfg.Progress = func(step string, done, _ int64) {
			if step == "delivering" && done >= stop {
				cancel()
			}
		}
		topics := w.open()
		left := w.entries(topics, nil)
		if len(left) == 0 {
			break
		}
		report, err := topics.Retry(ctx, left, RetryOptions{})
		if delivered += report.Delivered; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err == nil && len(left) != report.Delivered {
			t.Fatalf("%+v", report)
		}
	}
	if got := w.records(x); got != strings.Join(want, " ") || delivered != 500 {
		t.Errorf("%d delivered: %s", delivered, got)
	}
}
