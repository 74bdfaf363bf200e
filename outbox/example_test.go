package outbox_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/outbox"
)

type Order struct {
	ID    string
	Total int64
}

func ExampleWrite() {
	placeOrder := func(ctx context.Context, conn *pgx.Conn, order Order) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2)", order.ID, order.Total); err != nil {
				return err
			}
			return outbox.Write(ctx, tx, outbox.Event{
				AggregateType: "order",       // the topic: outbox.event.order
				AggregateID:   order.ID,      // the key
				Type:          "OrderPlaced", // a header, if walpost.yaml places it
				Payload:       order,         // the value, as JSON
			})
		})
	}
	_ = placeOrder
}

func ExampleOutbox_Write() {
	orders, err := outbox.New(outbox.Options{
		Table: "shop.outbox",
		FromContext: func(ctx context.Context) map[string]string {
			return map[string]string{"traceparent": traceparent(ctx)}
		},
	})
	if err != nil {
		panic(err) // the options are wrong, which does not depend on any server
	}
	cancelOrder := func(ctx context.Context, tx *sql.Tx, id string) error {
		return orders.Write(ctx, tx,
			outbox.Event{AggregateType: "order", AggregateID: id, Type: "OrderCancelled", Payload: map[string]string{"id": id}},
			outbox.Event{AggregateType: "mail", AggregateID: id, Type: "MailWanted", Payload: []byte(`{"template": 7}`), Headers: map[string]string{"tenant": "acme"}})
	}
	_ = cancelOrder
}

// traceparent stands for a library of tracing.
func traceparent(context.Context) string {
	return "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
}

// A payload can be what any library makes of a value. examples/libraries has Protocol Buffers and JSON
// Schema.
func ExampleNew_marshal() {
	counters, err := outbox.New(outbox.Options{
		PayloadType: "bytea",
		Marshal: func(v any) ([]byte, error) {
			return binary.Append(nil, binary.BigEndian, v)
		},
	})
	_, _ = counters, err
}

// In a compacted topic, a record without a value removes its key.
func ExampleEvent() {
	deleted := func(ctx context.Context, tx pgx.Tx, id string) error {
		return outbox.Write(ctx, tx, outbox.Event{ID: outbox.NewID(), AggregateType: "customer", AggregateID: id, Type: "CustomerDeleted", Payload: outbox.Null})
	}
	_ = deleted
}

func ExampleEventError() {
	write := func(ctx context.Context, tx pgx.Tx, events ...outbox.Event) error {
		err := outbox.Write(ctx, tx, events...)
		if e, ok := errors.AsType[*outbox.EventError](err); ok {
			log.Printf("event %d of type %s: %s: %v", e.Index, e.Event.Type, e.Field, e.Err) // tx can go on without it
		}
		return err
	}
	_ = write
}

func ExampleEmit() {
	cancelled := func(ctx context.Context, tx pgx.Tx, event outbox.Event) error {
		err := outbox.Emit(ctx, tx, "outbox", event)
		return err
	}
	_ = cancelled
}

// A consumer redeems the claims of large payloads.
func ExampleFetch() {
	store := outbox.FileStore("/var/lib/payloads")
	read := func(ctx context.Context, value []byte) ([]byte, error) {
		payload, err := outbox.Fetch(ctx, store, value)
		if errors.Is(err, outbox.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) {
			log.Printf("no other attempt can get this payload: %v", err)
		}
		return payload, err
	}
	_ = read
}

// A Store keeps payloads anywhere: here in memory.
func ExampleStore() {
	var store outbox.Store = new(memory)
	_ = outbox.Options{MaxPayload: 500_000, Store: store}
}

type memory struct{ payloads sync.Map }

func (m *memory) Put(_ context.Context, key string, data []byte) error {
	m.payloads.Store(key, data)
	return nil
}

func (m *memory) Get(_ context.Context, key string) (io.ReadCloser, error) {
	data, ok := m.payloads.Load(key)
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(data.([]byte))), nil
}

// A service makes its table by itself. Otherwise walpost setup makes it, or a migration with the SQL of DDL.
func ExampleMigrate() {
	start := func(ctx context.Context, db *sql.DB) error {
		return outbox.Migrate(ctx, db)
	}
	_ = start
}

// The table has a partition for each day, and is made by a migration of goose. The topics have names of their own, which
// walpost.yaml sets in router.route.topic.replacement.
func ExampleOutbox_Goose() {
	orders, err := outbox.New(outbox.Options{
		Partitioned: true,
		Topic:       func(aggregateType string) string { return "shop." + aggregateType },
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(strings.Contains(orders.Goose(), "PARTITION BY RANGE"))
	// Output: true
}

func ExampleOutbox_DDL() {
	orders, err := outbox.New(outbox.Options{Table: "shop.outbox", Headers: []string{"traceparent"}})
	if err != nil {
		panic(err)
	}
	up, down := orders.DDL()
	fmt.Println(up + down)
	fmt.Println("# walpost.yaml: router.table.fields.additional.placement")
	fmt.Println(orders.Placement())
	// Output:
	// -- The outbox. The application inserts one row for each event, in the transaction that changes the data.
	// -- Old rows may be deleted at any time after they are published: deletes are not published.
	// CREATE TABLE "shop"."outbox" (
	//   id             uuid        NOT NULL DEFAULT gen_random_uuid(),   -- the event's id, in the header "id"
	//   aggregate_type text        NOT NULL,                             -- decides the topic: outbox.event.<aggregate_type>
	//   aggregate_id   text        NOT NULL,                             -- the record's key: events with the same key stay in order
	//   event_type     text        NOT NULL,
	//   payload        jsonb,                                            -- the record's value
	//   "traceparent"  text,
	//   created_at     timestamptz NOT NULL DEFAULT now(),
	//   seq            bigint      GENERATED ALWAYS AS IDENTITY,         -- orders rows that walpost reads from the table
	//   PRIMARY KEY (id)
	// );
	// DROP TABLE "shop"."outbox";
	//
	// # walpost.yaml: router.table.fields.additional.placement
	// event_type:header:eventType,traceparent:header
}
