package examples

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/localpg"
	"github.com/walpost/walpost/internal/testenv"
)

// Orders come to the service by HTTP, the relay in embed delivers their events, and the service books each of them once:
// also one that is delivered twice. A message that is no order is a dead letter. On SIGTERM, both end well.
func TestTheServiceBooksEachOrderOnce(t *testing.T) {
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	w := &world{t, pg, pg.Database(t), strings.Join(kafka.Brokers(), ",")}
	kafka.CreateTopic(t, "payments.dead", 1, nil)
	client := kafka.Client(t, kgo.ConsumeTopics("outbox.event.order", "payments.dead"),
		kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(100*time.Millisecond))
	next := func() *kgo.Record {
		t.Helper()
		fetches := client.PollRecords(t.Context(), 1)
		if fetches.NumRecords() == 0 {
			t.Fatal(fetches.Err())
		}
		return fetches.Records()[0]
	}
	until := func(done func() error) {
		t.Helper()
		for limit := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			if err := done(); err == nil {
				return
			} else if time.Now().After(limit) {
				t.Fatal(err)
			}
		}
	}
	answers := func(url string, code int) func() error {
		return func() error {
			resp, err := http.Get(url)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != code {
				return fmt.Errorf("%s: %s", url, resp.Status)
			}
			return nil
		}
	}
	shop := w.serve("service")
	until(answers(shop, http.StatusNotFound)) // it has made the tables
	relay := w.serve("embed")
	until(answers(relay+"/readyz", http.StatusOK)) // it has made the slot, before the first order
	order := func(body string) error {
		resp, err := http.Post(shop+"/orders", "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			return errors.Join(fmt.Errorf("%s: %s", resp.Status, text), err)
		}
		return nil
	}
	owe := func(want string) {
		t.Helper()
		until(func() error {
			if got := pg.Value(t, w.dsn, "SELECT string_agg(customer || ' ' || owes, ', ' ORDER BY customer) FROM accounts"); got != want {
				return fmt.Errorf("customers owe %q, want %q", got, want)
			}
			return nil
		})
	}
	if err := order(`{"customer": "c-7", "cents": 1250}`); err != nil {
		t.Fatal(err)
	}
	event := next()
	if key := pg.Value(t, w.dsn, "SELECT id::text FROM orders"); event.Topic != "outbox.event.order" || string(event.Key) != key || !strings.Contains(string(event.Value), key) {
		t.Errorf("the record of the order %s is %+v", key, event)
	}
	owe("c-7 1250")

	again := &kgo.Record{Topic: event.Topic, Key: event.Key, Value: event.Value, Headers: event.Headers}
	bad := &kgo.Record{Topic: event.Topic, Value: []byte("no order"), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("bad")}}}
	if err := client.ProduceSync(t.Context(), again, bad).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for letter := next(); letter.Topic != "payments.dead"; letter = next() {
	}
	if err := errors.Join(order(`{"customer": "c-7", "cents": 300}`), order(`{"customer": "c-8", "cents": 1}`)); err != nil {
		t.Fatal(err)
	}
	until(func() error { // everything is handled, also the event that came again
		lags, err := kadm.NewClient(client).Lag(t.Context(), "payments")
		if err != nil {
			return err
		}
		if end := lags["payments"].Lag["outbox.event.order"][0]; end.Err != nil || end.Lag != 0 || end.Commit.At != 5 {
			return fmt.Errorf("the group has committed %d of 5 messages, %w", end.Commit.At, end.Err)
		}
		return nil
	})
	owe("c-7 1550, c-8 1")

	if err := order(`{"customer": "c-7", "cents": -1}`); err == nil {
		t.Error("an order of -1 cents is taken")
	}
	if rows := pg.Value(t, w.dsn, "SELECT count(*)::text FROM outbox"); rows != "3" {
		t.Errorf("%s rows in the outbox, want 3: a refused order has no event", rows)
	}
}

// serve starts a program that listens, and returns its URL.
func (w *world) serve(name string) string {
	w.Helper()
	port, err := localpg.FreePort()
	if err != nil {
		w.Fatal(err)
	}
	listen := fmt.Sprintf("127.0.0.1:%d", port)
	w.start(name, []string{"DATABASE_URL=" + w.dsn, "KAFKA_BROKERS=" + w.brokers, "LISTEN=" + listen})
	return "http://" + listen
}
