package walpost

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/command/verify"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/statelog"
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

// A dry run registers no schema. What it has seen of the registry is not taken for an id of a later run.
func TestADryRetryRegistersNothing(t *testing.T) {
	schemas := srfake.New()
	t.Cleanup(schemas.Close)
	cfg := DefaultConfig()
	cfg.Name, cfg.Source.Table, cfg.Records.Value.Name, cfg.SchemaRegistry.URLs = "shop", "public.outbox", "avro", []string{schemas.URL()}
	cluster := testenv.FakeKafka(t, kfake.SeedTopics(1, cfg.Delivery.DeadLetterTopic, "outbox.event.order"))
	cfg.Kafka.Brokers = cluster.ListenAddrs()
	rel := &cdc.Relation{ID: 7, Schema: "public", Name: "outbox", ReplicaIdentity: 'd'}
	ev := &cdc.Event{Kind: cdc.Insert, Pos: 7, Time: time.Now(), Row: cdc.Row{Relation: rel}}
	for _, c := range [][2]string{{"id", "7f3"}, {"aggregatetype", "order"}, {"aggregateid", "42"}, {"payload", "an order"}} {
		rel.Columns = append(rel.Columns, cdc.Column{Name: c[0], TypeOID: 25, TypeMod: -1})
		ev.Row.Values = append(ev.Row.Values, cdc.Value{Bytes: []byte(c[1])})
	}
	rec, err := (&deadletter.Letter{
		Token: "token", Reason: cdc.Unroutable, Error: "once", Table: "public.outbox", ID: "7f3", Commit: 7, Row: 1, CommitTime: time.Now(), Partition: -1, Attempts: 1,
		Name: "shop", Timeline: 1, Key: []byte("42"), KeyKnown: true, Event: ev,
	}).Encode(cfg.Delivery.DeadLetterTopic)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.Kafka.Brokers...), kgo.ConsumeTopics("outbox.event.order"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	letter := &kgo.Record{Topic: rec.Topic, Key: rec.Key, Value: rec.Value, Timestamp: rec.Time}
	for _, h := range rec.Headers {
		letter.Headers = append(letter.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	if err := client.ProduceSync(t.Context(), letter).FirstErr(); err != nil {
		t.Fatal(err)
	}
	topics, err := OpenBadEvents(t.Context(), cfg, "", func(string) {}, func(string, int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	defer topics.Close()
	events, err := topics.Select(&BadEventFilter{State: deadletter.Open})
	if err != nil || len(events) != 1 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	report, err := topics.Retry(t.Context(), events, RetryOptions{DryRun: true})
	if err != nil || report.Topics["outbox.event.order"] != 1 || schemas.SubjectExists("outbox.event.order-value") {
		t.Errorf("%+v, %v; registered: %v", report, err, schemas.SubjectExists("outbox.event.order-value"))
	}
	if report, err = topics.Retry(t.Context(), events, RetryOptions{}); err != nil || report.Delivered != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	got := client.PollRecords(t.Context(), 1).Records()
	schema, registered := schemas.GetSchema("outbox.event.order-value", 1)
	if len(got) != 1 || !registered || !bytes.HasPrefix(got[0].Value, []byte{0, 0, 0, 0, byte(schema.ID)}) || schema.ID == 0 {
		t.Errorf("%+v with the schema %+v", got, schema)
	}
}

// The hint for a damaged checkpoint file would not help with the state of a replay.
func TestADamagedStateOfAReplayMayBeRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := statelog.NewFileStore(path).Look(t.Context(), "replay")
	if hint := fault.Hint(stateError(err)); err == nil || !strings.Contains(hint, "Remove the file") || strings.Contains(hint, "slot") {
		t.Errorf("%v, hint %q", err, hint)
	}
}
