// Package explain says what becomes of a row: the record that the row gives and where it goes, or why it gives none.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
)

// Options say which rows are explained: exactly one of ID, Last and JSON.
type Options struct {
	ID   string // the rows with this event id
	Last int    // the newest rows, newest first
	JSON []byte // a row that need not exist, as a JSON object keyed by column name
	// Partitions is the number of partitions to assume for every topic. With 0, Kafka is asked.
	Partitions int
}

// Config is what rows are explained by.
type Config struct {
	From        table.Source
	Router      *router.Router
	OrderColumn string        // orders the newest rows; "" orders them by transaction
	Halted      string        // what to do if a row that is in the table halts run; "" if the WAL keeps the row
	Kafka       *kafka.Config // nil if the records do not go to Kafka
	Compression string        // of the records
}

// An Explanation is the record that one row gives, or why it gives none.
type Explanation struct {
	Table   string `json:"table"`
	EventID string `json:"event_id"` // "" if it could not be found

	// Problem says why the row produces no record, or why its record would not be delivered; "" if there is none. Column is the column
	// and Option the key of walpost.yaml that the problem is about, if they are known. Hint says what to do.
	Problem string `json:"problem,omitempty"`
	Column  string `json:"column,omitempty"`
	Option  string `json:"option,omitempty"`
	Hint    string `json:"fix,omitempty"`

	Record *cdc.Record `json:"-"` // nil if the row produces none
	// TimeFrom says where the record's timestamp comes from.
	TimeFrom string `json:"-"`
	// Partition is -1 if it is unknown, or if the producer may choose any. PartitionFrom says why.
	Partition     int32  `json:"-"`
	PartitionFrom string `json:"-"`
}

// ErrNoRow says that the table does not have the row that was asked for.
var ErrNoRow = errors.New("there is no such row")

// Explain routes the rows that opts ask for, and hands each Explanation to show, valid during the call. It changes nothing.
func Explain(ctx context.Context, cfg Config, opts Options, show func(*Explanation) error) error {
	reader, err := cfg.From.Open(ctx, table.Options{Timeout: 30 * time.Second})
	if err != nil {
		return err
	}
	defer reader.Close()
	if n := len(reader.Tables()); n != 1 {
		return fault.Config(fmt.Errorf("%d tables are configured", n), "Say which one: --table schema.table.")
	}
	e := explainer{Config: cfg, opts: opts, table: reader.Tables()[0]}
	e.columns = cfg.Router.Columns(e.table.Relation)
	cfg.Router.SetRunID("(kept in the checkpoint)")
	if opts.Partitions == 0 && cfg.Kafka != nil {
		if e.brokers, err = kafka.NewAsker(*cfg.Kafka); err != nil {
			return err
		}
		defer e.brokers.Close()
	}
	rows, err := e.rows(ctx)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		ev, err := rows.Next()
		if bad := table.BadValue(err); bad != nil && opts.JSON != nil {
			return fault.Config(fmt.Errorf("the row does not fit table %s: %w", e.table, bad), "")
		} else if bad != nil {
			return fmt.Errorf("%w in %s: %w", ErrNoRow, e.table, bad)
		}
		switch {
		case err != nil:
			return err
		case ev == nil && n == 0 && opts.Last == 0:
			return fmt.Errorf("%w in %s: no row has the event id %q", ErrNoRow, e.table, opts.ID)
		case ev == nil && n == 0:
			return fmt.Errorf("%w: table %s is empty", ErrNoRow, e.table)
		case ev == nil:
			return nil
		}
		x, err := e.explain(ctx, ev, rows.CommitKnown)
		if err != nil {
			return err
		}
		switch {
		case rows.LeftOut:
			x.Problem, x.Option, x.Column = "the publication's row filter leaves the row out: only rows that match "+e.table.Filter+" are published", "", ""
			x.Hint = "walpost check prints the SQL that removes the filter."
		case x.Problem != "" && opts.JSON == nil:
			x.Hint = strings.TrimSpace(x.Hint + " " + cmp.Or(e.Halted, storedRow))
		}
		if err := show(x); err != nil {
			return err
		}
	}
}

// storedRow is added to the hint of a problem if the row is in the table, as the hint of a halt does.
const storedRow = "If run has halted on this row, an UPDATE or DELETE of the row does not help, because the WAL keeps it as it was written: " +
	"repair the configuration, or skip the event with walpost skip and the token of the halt. (snapshot and recover read the row as it is now.)"

type explainer struct {
	Config
	opts    Options
	brokers *kafka.Asker // nil if they are not asked
	table   *table.Table
	columns router.Columns
}

func (e *explainer) rows(ctx context.Context) (*table.Rows, error) {
	if e.opts.JSON != nil {
		rows, err := e.table.FromJSON(ctx, e.opts.JSON)
		if bad := table.BadValue(err); bad != nil {
			return nil, fault.Config(fmt.Errorf("the row does not fit table %s: %w", e.table, bad), "")
		}
		return rows, err
	}
	sel := table.Selection{Newest: e.opts.Last, All: true}
	if e.opts.Last > 0 {
		sel.Order = table.AsWritten(e.OrderColumn)
	} else {
		sel.IDColumn, sel.In = e.columns.ID, []table.In{{Column: e.columns.ID, Values: []string{e.opts.ID}}}
	}
	rows, err := e.table.Select(ctx, sel)
	if bad := table.BadValue(err); bad != nil {
		return nil, fmt.Errorf("%w in %s: %w", ErrNoRow, e.table, bad)
	}
	return rows, err
}

func (e *explainer) explain(ctx context.Context, ev *cdc.Event, commitKnown bool) (*Explanation, error) {
	x := &Explanation{Table: e.table.String(), Partition: -1}
	if i := e.table.Relation.Index(e.columns.ID); i >= 0 {
		x.EventID = string(ev.Row.Values[i].Bytes)
	}
	for i, c := range e.table.Relation.Columns {
		if e.opts.JSON != nil && c.NotNull && !c.Generated && ev.Row.Values[i].Bytes == nil {
			x.Problem, x.Column = fmt.Sprintf("Postgres would refuse an INSERT of the row: column %s is NOT NULL", c.Name), c.Name
			x.Hint = "Give the column a value in the row."
			return x, nil
		}
	}
	var rec cdc.Record
	ok, err := e.Router.Route(ev, &rec)
	switch {
	case fault.Retryable(err): // the schema registry does not answer
		return nil, err
	case err != nil:
		explainError(x, err)
		return x, nil
	case !ok:
		x.Problem = "the row produces no record"
		return x, nil
	}
	x.Record, x.EventID = &rec, rec.EventID
	x.TimeFrom = e.timeFrom(ev, commitKnown)
	e.place(ctx, x)
	return x, nil
}

func (e *explainer) timeFrom(ev *cdc.Event, commitKnown bool) string {
	if i := e.table.Relation.Index(e.columns.Timestamp); i >= 0 && ev.Row.Values[i].Bytes != nil {
		return "column " + e.columns.Timestamp + ", by router.table.field.event.timestamp"
	}
	switch {
	case commitKnown:
		return "the commit time of the row's transaction"
	case e.opts.JSON != nil:
		return "the current time; once the row is inserted, its record gets the commit time of its transaction"
	}
	return "the current time, because the server keeps no commit time of the row (track_commit_timestamp); run uses the commit time of the transaction"
}

// place finds the partition of the record, and what would keep the record from being delivered.
func (e *explainer) place(ctx context.Context, x *Explanation) {
	rec := x.Record
	partitions, from, limit, unknown := int32(e.opts.Partitions), "from --partitions", 0, error(nil)
	switch {
	case e.opts.Partitions > 0:
	case e.brokers == nil:
		unknown = errors.New("no brokers are configured")
	default:
		t := e.brokers.Topic(ctx, rec.Topic)
		if unknown = t.Err; unknown == nil {
			partitions, from, limit = int32(len(t.Partitions)), "the current number of partitions of the topic", int(t.Limit())
		}
	}
	switch {
	case unknown != nil && rec.Partition >= 0:
		x.Partition, x.PartitionFrom = rec.Partition, "from its column; it is unknown whether the topic has this partition: "+unknown.Error()
	case unknown != nil:
		x.PartitionFrom = "unknown: " + unknown.Error() + " (pass the number with --partitions)"
	case rec.Partition >= partitions:
		x.Partition, x.PartitionFrom = rec.Partition, "by its column"
		x.Problem = fmt.Sprintf("the row asks for partition %d, but the topic has %d partitions, numbered from 0", rec.Partition, partitions)
		x.Option = "router.table.fields.additional.placement"
		x.Hint = "Write a partition that exists, add partitions to the topic, or remove the placement."
	case rec.Partition >= 0:
		x.Partition, x.PartitionFrom = rec.Partition, "by its column"
	case rec.Key == nil:
		x.PartitionFrom = "any: the producer chooses the partition of a record without a key"
	default:
		x.Partition = sink.PartitionOf(rec, partitions)
		x.PartitionFrom = fmt.Sprintf("murmur2 of the key over %d partitions, %s", partitions, from)
	}
	if limit == 0 || x.Problem != "" || sink.BatchBytes(rec) <= limit {
		return
	}
	size, err := sink.CompressedBytes(rec, e.Compression)
	switch {
	case err != nil:
		x.Problem = err.Error()
	case size > limit:
		x.Problem = fmt.Sprintf("the record is too large for the topic: %d bytes with kafka.compression %s, and max.message.bytes is %d", size, e.Compression, limit)
		x.Hint = "Raise max.message.bytes of the topic, or choose a kafka.compression that makes the record smaller."
	}
}

// explainError fills in why the router has no record for a row.
func explainError(x *Explanation, err error) {
	x.Problem = err.Error()
	var bad *router.RowError
	if !errors.As(err, &bad) {
		return
	}
	p := bad.Problems[0]
	x.Problem, x.Option, x.Column, x.Hint = bad.Reason(), p.Option, p.Column, bad.Hint()
}
