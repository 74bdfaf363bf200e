package libraries

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/typepb"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
)

// event has a message of Protocol Buffers, which stands for one of the user's own.
func event() (outbox.Event, *typepb.Field) {
	m := &typepb.Field{Name: "total", Number: 1250, JsonName: "\u00e4"}
	return outbox.Event{AggregateType: "order", AggregateID: "4711", Type: "OrderPlaced", Payload: m}, m
}

// A consumer gets the message that was written, in either form.
func TestAMessageOfProtocolBuffersIsRelayed(t *testing.T) {
	for name, c := range map[string]struct {
		open      func() (*outbox.Outbox, error)
		converter string
		unmarshal func([]byte, proto.Message) error
	}{
		"binary": {Protobuf, "bytes", proto.Unmarshal},
		"JSON":   {ProtobufJSON, "string", protojson.Unmarshal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := c.open()
			if err != nil {
				t.Fatal(err)
			}
			pg, brokers := testenv.Postgres(t, "", testenv.Private()), testenv.FakeKafka(t).ListenAddrs()
			dsn := pg.Database(t)
			up, _ := o.DDL()
			pg.Exec(t, dsn, up)
			cfg := walpost.DefaultConfig()
			cfg.Source.DSN, cfg.Source.Table, cfg.Source.Snapshot = walpost.Secret(dsn), "public.outbox", "never"
			cfg.Kafka.Brokers, cfg.Kafka.Topics.Create = brokers, true
			cfg.Records.Value.Name = c.converter
			relay, err := walpost.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- relay.Run(ctx) }()
			for !relay.Status().Ready {
				select {
				case err := <-ended:
					t.Fatal(err)
				case <-time.After(10 * time.Millisecond):
				}
			}
			e, want := event()
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { return o.Write(t.Context(), tx, e) }); err != nil {
				t.Fatal(err)
			}
			consumer, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("outbox.event.order"),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.UnknownTopicRetries(-1))
			if err != nil {
				t.Fatal(err)
			}
			defer consumer.Close()
			var records []*kgo.Record
			for len(records) == 0 && t.Context().Err() == nil {
				records = consumer.PollFetches(t.Context()).Records()
			}
			var got typepb.Field
			if err := c.unmarshal(records[0].Value, &got); err != nil || !proto.Equal(&got, want) {
				t.Errorf("the value %q is %v, %v; want %v", records[0].Value, &got, err, want)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// Without a marshaller, a message is refused, and the error says how to write it.
func TestAMessageWithoutAMarshallerIsRefused(t *testing.T) {
	pg := testenv.Postgres(t, "")
	conn, err := pgx.Connect(t.Context(), pg.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e, _ := event()
	refused := func(err error, want string) {
		t.Helper()
		if bad := (*outbox.EventError)(nil); !errors.As(err, &bad) || bad.Field != "Payload" || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	refused(outbox.Write(t.Context(), tx, e), "is a message of Protocol Buffers (*typepb.Field), which json.Marshal writes in a form of its own: set Options.Marshal to a function that calls proto.Marshal")
	for _, open := range []func() (*outbox.Outbox, error){Protobuf, ProtobufJSON} {
		o, err := open()
		if err != nil {
			t.Fatal(err)
		}
		other := e
		other.Payload = 1
		refused(o.Write(t.Context(), tx, other), "int is not a proto.Message")
	}
}

func TestASchemaRefusesAPayload(t *testing.T) {
	schema, err := Schema(`{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"type": "object", "required": ["id", "customer"],
		"properties": {"id": {"type": "string"}, "customer": {"type": "string", "minLength": 1}}
	}`)
	if err != nil {
		t.Fatal(err)
	}
	o, err := JSONSchema(map[reflect.Type]*jsonschema.Schema{reflect.TypeFor[Order](): schema})
	if err != nil {
		t.Fatal(err)
	}
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	up, _ := o.DDL()
	pg.Exec(t, dsn, up)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		for payload, want := range map[any]string{Order{ID: "a"}: "minLength", 7: "there is no schema for int"} {
			e := placed(Order{ID: "a"})
			e.Payload = payload
			err := o.Write(t.Context(), tx, placed(Order{ID: "b", Customer: "ann"}), e)
			if bad := (*outbox.EventError)(nil); !errors.As(err, &bad) || bad.Index != 1 || bad.Field != "Payload" || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %q", payload, err, want)
			}
		}
		return o.Write(t.Context(), tx, placed(Order{ID: "c", Customer: "ann"}))
	})
	if err != nil {
		t.Error(err)
	}
	if got := pg.Value(t, dsn, "SELECT string_agg(payload->>'id', ' ') FROM outbox"); got != "c" {
		t.Errorf("events %s", got)
	}
}
