package walpost

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/command/verify"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/testenv"
)

// The dead letter topic and the parked event topic tell where the event of a row is that has no record.
func TestAnEventCanBeADeadLetterOrParked(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Name = "shop"
	dead, parked := cfg.Delivery.DeadLetterTopic, cfg.Delivery.ParkingTopic
	cluster := testenv.FakeKafka(t, kfake.SeedTopics(2, dead))
	cfg.Kafka.Brokers = cluster.ListenAddrs()
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.Kafka.Brokers...), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	send := func(rec *cdc.Record, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		r := &kgo.Record{Topic: rec.Topic, Key: rec.Key, Value: rec.Value, Timestamp: rec.Time}
		for _, h := range rec.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	letter := func(topic, relay, id string) {
		t.Helper()
		send((&deadletter.Letter{
			Token: "token " + id, Reason: deadletter.Behind, Table: "public.outbox", ID: id, Commit: 7, Row: 1, CommitTime: now, Partition: -1, Attempts: 1,
			Name: relay, Timeline: 1, Key: []byte("key of " + id), KeyKnown: true, Record: &cdc.Record{},
		}).Encode(topic))
	}
	where := func(id string) verify.Place {
		t.Helper()
		at, err := (&Relay{cfg: cfg}).elsewhere(t.Context(), func(text string) { t.Error(text) })
		if err != nil {
			t.Fatal(err)
		}
		return at("public.outbox", id)
	}
	letter(dead, "shop", "dead")
	letter(dead, "shop", "retried")
	send((&deadletter.Mark{State: deadletter.Retried, Token: "token retried", Time: now}).Encode(dead, []byte("key of retried"), -1), nil)
	if got := where("parked"); got != (verify.Place{}) { // the topic does not exist yet
		t.Errorf("%+v", got)
	}
	if err := cluster.CreateTopic(parked, 1, nil); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"parked", "released", "dropped"} {
		letter(parked, "shop", id)
	}
	letter(parked, "another", "another's")
	entry := func(id, why string) *parking.Entry {
		return &parking.Entry{Token: "token " + id, Key: parking.Key{Table: "public.outbox", Key: "key of " + id}, Why: why}
	}
	send(parking.ReleasedMark(parked, "shop", []*parking.Entry{entry("released", "")}, now), nil)
	send(parking.DroppedMark(parked, "shop", entry("dropped", "why"), now), nil)
	for id, want := range map[string]verify.Place{
		"dead": {Name: "dead letter", Open: true}, "retried": {}, "parked": {Name: "parked event", Open: true, Parked: true}, "released": {},
		"dropped": {Name: "parked event, dropped by a person", Parked: true}, "another's": {}, "no event": {},
	} {
		if got := where(id); got != want {
			t.Errorf("%s: %+v; want %+v", id, got, want)
		}
	}
}

// walpost dead needs the name of the database, and neither its password nor, if the relay has a name, its certificates.
func TestBadEventsNeedNoSecretOfTheDatabase(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table, cfg.Source.PasswordFile = "postgres://walpost@db/shop", "public.outbox", "/no/such/file"
	cfg.Kafka.Brokers = testenv.FakeKafka(t, kfake.SeedTopics(1, cfg.Delivery.DeadLetterTopic)).ListenAddrs()
	open := func() error {
		events, err := OpenBadEvents(t.Context(), cfg, "", func(string) {}, func(string, int64, int64) {})
		if err == nil {
			events.Close()
		}
		return err
	}
	if err := open(); err != nil {
		t.Errorf("without the password file: %v", err)
	}
	cfg.Source.DSN += "?sslmode=verify-full&sslrootcert=/no/such/file"
	if err := open(); err == nil {
		t.Error("nothing tells the name of the relay, and that is no error")
	}
	cfg.Name = "shop"
	if err := open(); err != nil {
		t.Errorf("without the certificate: %v", err)
	}
}
