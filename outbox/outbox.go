// Package outbox writes events into a transactional outbox: in the transaction that changes the
// data, so that either both are committed or neither is. walpost relays the events to Kafka.
//
//	tx, err := pool.Begin(ctx)
//	// … change the data in tx …
//	err = outbox.Write(ctx, tx, outbox.Event{
//		AggregateType: "order", AggregateID: "4711", Type: "OrderPlaced", Payload: order,
//	})
//	err = tx.Commit(ctx)
//
// Write works with pgx, database/sql, and libraries built on them. Before it runs any SQL, it
// refuses an event that walpost couldn't route. docs/write-events.md describes the package.
package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/lib/topicname"
)

// An Event is one row of the outbox, and one record in Kafka.
type Event struct {
	// ID is a UUID. The record has it in the header "id", by which consumers recognise a repeated
	// event. Default: NewID().
	ID string
	// AggregateType determines the topic: outbox.event.<AggregateType>.
	AggregateType string
	// AggregateID is the record's key. Events with the same key stay in order.
	AggregateID string
	// Type says what happened, such as OrderPlaced.
	Type string
	// Payload is the record's value. []byte and json.RawMessage are used as they are, and so is a
	// string if Options.PayloadType is text or bytea. Null means no value. Options.Marshal encodes
	// everything else. A nil pointer, map or slice is refused.
	Payload any
	// Headers are additional headers of the record, up to 1,000. The names "id", "eventType" and
	// "walpost.…" are reserved.
	Headers map[string]string
}

// Null is the payload of a record without a value. In a compacted topic, such a record removes its
// key.
var Null = null{}

type null struct{}

// Options describe an outbox table and how events are written into it. The zero value describes the
// table that walpost setup creates.
type Options struct {
	// Table is schema.table, with SQL's rules for names. Default: public.outbox.
	Table string
	// PayloadType is the type of the column payload: jsonb (default), json, text or bytea.
	PayloadType string
	// Headers are the names of the headers that events may have. The table has a text column with
	// the same name for each. With an empty slice that isn't nil, events have no headers. By
	// default (nil), they may have any headers, which the column headers (jsonb) contains.
	// Placement returns what walpost.yaml needs.
	Headers []string
	// Partitioned means that the table has one partition for each day. Only Migrate, DDL and Goose
	// use it.
	Partitioned bool

	// Marshal encodes a payload. Default: json.Marshal, which must not be used for Protocol Buffers
	// messages. Write refuses a payload that is such a message, but doesn't look for messages
	// inside a payload.
	Marshal func(v any) ([]byte, error)
	// FromContext returns headers for all events of a call, such as the trace context. Headers that
	// events can't have are left out. An Event's own Headers take precedence.
	FromContext func(ctx context.Context) map[string]string
	// Topic returns the topic of an aggregate type. Set it if walpost.yaml sets router.route.topic
	// or router.topic.rename. Default: "outbox.event." followed by the aggregate type.
	Topic func(aggregateType string) string

	// MaxPayload is the largest payload in bytes. A larger one goes to Store, and the event has a
	// claim instead, from which Fetch gets the payload. Without a Store, the event is refused. 0
	// means no limit.
	MaxPayload int
	Store      Store
}

// An Outbox writes events into one table. Any number of goroutines may use it.
type Outbox struct {
	opts    Options
	table   outboxtable.Table
	columns []string // that Write fills
	insert  string
}

// columns are the columns that Write fills in every outbox. Those of Options.Headers follow, or
// headers if it is nil.
var columns = []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload"}

const (
	payloadColumn = 4
	headersColumn = 5 // if Options.Headers is nil
)

// New returns an Outbox, or what is wrong with the options. It makes no connections.
func New(opts Options) (*Outbox, error) {
	opts.Table, opts.PayloadType = cmp.Or(opts.Table, "public.outbox"), cmp.Or(opts.PayloadType, "jsonb")
	opts.Headers = slices.Clone(opts.Headers)
	if opts.Topic == nil {
		opts.Topic = func(aggregateType string) string { return topicname.DefaultPrefix + aggregateType }
	}
	name, err := pgname.ParseTable(opts.Table)
	if err != nil {
		return nil, fmt.Errorf("outbox: Options.Table: %w", err)
	}
	if _, known := outboxtable.Payloads[opts.PayloadType]; !known {
		return nil, fmt.Errorf("outbox: Options.PayloadType: must be jsonb, json, text or bytea (got %q)", opts.PayloadType)
	}
	taken := append(slices.Clone(columns), outboxtable.DefaultTimeColumn, outboxtable.DefaultOrderColumn)
	for _, h := range opts.Headers {
		err := pgname.CheckName(h)
		if err == nil && (strings.ContainsAny(h, ",:") || h != strings.TrimSpace(h) || slices.Contains(taken, h)) {
			err = fmt.Errorf("must be a name that no other column has, without commas, colons, and leading or trailing spaces (got %q)", h)
		}
		if err == nil && reserved(h) {
			err = ownHeader(h)
		}
		if err != nil {
			return nil, fmt.Errorf("outbox: Options.Headers: %w", err)
		}
		taken = append(taken, h)
	}
	o := &Outbox{opts: opts, table: outboxtable.Table{
		Name: name, Payload: opts.PayloadType, Headers: opts.Headers, Partitioned: opts.Partitioned,
	}}
	if o.columns = append(slices.Clone(columns), opts.Headers...); opts.Headers == nil {
		o.columns = append(o.columns, outboxtable.HeadersColumn)
	}
	o.insert = o.insertSQL()
	return o, nil
}

// Options returns the options passed to New, with defaults filled in.
func (o *Outbox) Options() Options {
	opts := o.opts
	opts.Headers = slices.Clone(opts.Headers)
	return opts
}

// insertSQL is the statement that fills the columns. Its text is the same for any number of events, so
// that drivers can keep it prepared.
func (o *Outbox) insertSQL() string {
	var names, arrays []string
	for i, c := range o.columns {
		typ := "text"
		switch {
		case i == 0:
			typ = "uuid"
		case i == payloadColumn:
			typ = o.opts.PayloadType
		case i == headersColumn && o.opts.Headers == nil:
			typ = "jsonb"
		}
		names = append(names, pgname.QuoteIdent(c))
		arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+1, typ))
	}
	// unnest returns the elements in their order.
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT * FROM unnest(%s)", o.table.Name.SQL(), strings.Join(names, ", "), strings.Join(arrays, ", "))
}

var standard, _ = New(Options{})

// Write writes events into public.outbox, the table that walpost setup creates. See Outbox.Write.
func Write(ctx context.Context, tx any, events ...Event) error {
	return standard.Write(ctx, tx, events...)
}

// Write writes events in the transaction tx, with one statement, in the given order. tx is a
// pgx.Tx, a *sql.Tx, or another handle with the method Exec of pgx or ExecContext of database/sql.
// If its type doesn't show whether it is a transaction, Write finds out by creating a savepoint.
//
// An *EventError, or an error about tx, means that no event was sent to the server, and that the
// transaction is unchanged. Any other error is the server's: Postgres then refuses further
// statements of the transaction until you roll back, completely or to a savepoint.
func (o *Outbox) Write(ctx context.Context, tx any, events ...Event) error {
	to, rows, err := o.prepare(ctx, tx, events)
	if err != nil || len(rows) == 0 {
		return err
	}
	args := make([]any, len(o.columns))
	for i := range args {
		args[i] = arrayText(rows, i, i == payloadColumn && o.opts.PayloadType == "bytea")
	}
	if _, err := to.Exec(ctx, o.insert, args...); err != nil {
		return fmt.Errorf("outbox: write %d events to %s: %w%s", len(events), o.table.Name, err, o.hint(err))
	}
	return nil
}

// hint says what to do about an error of Postgres, or is "".
func (o *Outbox) hint(err error) string {
	var state interface{ SQLState() string }
	if o.opts.Headers != nil || !errors.As(err, &state) || state.SQLState() != "42703" || !strings.Contains(err.Error(), outboxtable.HeadersColumn) {
		return ""
	}
	return fmt.Sprintf(": run ALTER TABLE %s ADD COLUMN %s jsonb, or set Options.Headers to the columns that the table has for headers", o.table.Name.SQL(), outboxtable.HeadersColumn)
}

// An EventError says why an event was refused. None of the call's events were sent to the server.
type EventError struct {
	Index int    // of the event in the call
	Event Event  // as it was given
	Field string // of the event, such as Payload or Headers["tenant"]
	Err   error
}

func (e *EventError) Error() string {
	return fmt.Sprintf("outbox: event %d (%q %q %q): %s: %s", e.Index, e.Event.Type, e.Event.AggregateType, e.Event.AggregateID, e.Field, e.Err)
}

func (e *EventError) Unwrap() error { return e.Err }
