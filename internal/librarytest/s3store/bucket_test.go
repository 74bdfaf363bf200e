//go:build linux || darwin

package s3store_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/aws"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
)

// A relaysStore writes with the small client of a relay, and reads as consumers do.
type relaysStore struct {
	*aws.Bucket
	outbox.Store
}

func (s relaysStore) Put(ctx context.Context, key string, data []byte) error {
	return s.Bucket.Put(ctx, key, data)
}

func TestTheErrorsOfARelaysClientAreHelpful(t *testing.T) {
	s := shared(t)
	name := bucket(t, s.client(t, credentials.NewStaticV4, secret))
	for wrong, c := range map[string]struct{ endpoint, bucket, secret, want, hint string }{
		"the secret":   {s.Address(), name, "another", "403 Forbidden: SignatureDoesNotMatch", "credentials"},
		"the bucket":   {s.Address(), "nosuchbucket", secret, "404 Not Found: NoSuchBucket", "records.claim_check.bucket"},
		"the endpoint": {"127.0.0.1:1", name, secret, "connection refused", ""},
	} {
		t.Setenv("AWS_SECRET_ACCESS_KEY", c.secret)
		err := aws.NewBucket("http://"+c.endpoint, c.bucket, "p/").Put(t.Context(), "key", []byte("data"))
		if err == nil || !strings.HasPrefix(err.Error(), "s3://"+c.bucket+"/p/key: ") || !strings.Contains(err.Error(), c.want) || !strings.Contains(fault.Hint(err), c.hint) {
			t.Errorf("%s is wrong: %v (%s)", wrong, err, fault.Hint(err))
		}
	}
}

// A relay with a bucket that does not answer at first: nothing comes before its payload, and everything comes.
func TestARelayStoresLargeValuesInABucket(t *testing.T) {
	s := shared(t)
	client := s.client(t, credentials.NewStaticV4, secret)
	name := bucket(t, client)
	store := open(t, client, name, "shop/")
	var down atomic.Bool
	var refused, most, now atomic.Int64
	down.Store(true)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: s.Address()}) // keeps the host that is signed
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if down.Load() {
			refused.Add(1)
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		time.Sleep(5 * time.Millisecond)
		proxy.ServeHTTP(w, req)
	}))
	defer front.Close()

	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	dsn := pg.Database(t)
	orders, err := outbox.New(outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	up, _ := orders.DDL()
	pg.Exec(t, dsn, up)
	topic := kafka.Topic(t, 3, nil)
	cfg := walpost.DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table, cfg.Source.Snapshot = walpost.Secret(dsn), "public.outbox", "initial"
	cfg.Source.OrderColumn = "seq"
	cfg.Router.TopicReplacement = topic
	cfg.Kafka.Brokers = kafka.Brokers()
	cfg.Records.ClaimCheck.Over, cfg.Records.ClaimCheck.Store = 10_000, "s3"
	cfg.Records.ClaimCheck.Endpoint, cfg.Records.ClaimCheck.Bucket, cfg.Records.ClaimCheck.Prefix = front.URL, name, "shop/"
	cfg.Checkpoint.Topic, cfg.Delivery.DeadLetterTopic = topic+".checkpoints", topic+".dead"
	cfg.Logger = slog.New(slog.DiscardHandler)
	const rows = 60
	pg.Exec(t, dsn, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', 'k' || i % 7, 'x', jsonb_build_object('n', i, 'text', repeat('x', CASE WHEN i % 3 = 0 THEN 10 ELSE 20000 END)) FROM generate_series(1, 60) i`)
	relay, err := walpost.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	for st := relay.Status(); st.Ready || !strings.Contains(st.Reason, "503"); st = relay.Status() {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if refused.Load() == 0 {
		t.Error("nothing was refused")
	}
	down.Store(false)
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafka.Brokers()...), kgo.ConsumeTopics(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	claims, got := 0, 0
	limit, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for got < rows {
		fetches := cl.PollFetches(limit)
		if limit.Err() != nil {
			t.Fatalf("%d of %d: %+v", got, rows, relay.Status().Reason)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			got++
			payload, err := outbox.Fetch(t.Context(), store, rec.Value)
			if err != nil || !bytes.HasSuffix(payload, []byte(`x"}`)) {
				t.Errorf("%.100s: %v", rec.Value, err)
			}
			if len(payload) > len(rec.Value) {
				claims++
			}
		})
	}
	if claims != 40 || most.Load() < 2 {
		t.Errorf("%d claims, %d uploads at a time", claims, most.Load())
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
