package outbox_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"

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
		return payload, err
	}
	_ = read
}

// A service makes its table by itself. Otherwise walpost setup makes it, or a migration with the SQL of DDL.
func ExampleMigrate() {
	start := func(ctx context.Context, db *sql.DB) error {
		return outbox.Migrate(ctx, db)
	}
	_ = start
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
