package backfill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/pump"
	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/router"
)

// A Filter selects rows. The zero Filter selects all.
type Filter struct {
	// IDs, Types and Keys select the rows whose event id, aggregate type (router.route.by.field) or key is one of them. nil selects all.
	IDs   []string `json:"ids,omitempty"`
	Types []string `json:"types,omitempty"`
	Keys  []string `json:"keys,omitempty"`
	// FirstID and LastID select a range of event ids, as the server compares the column.
	FirstID *string `json:"first_id,omitempty"`
	LastID  *string `json:"last_id,omitempty"`
	// Since and Until select the rows that were written from Since on, and before Until. A row of unknown age is selected.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

// narrow puts the filter into a selection.
func (f *Filter) narrow(t *table.Table, columns router.Columns, sel *table.Selection) error {
	sel.FirstID, sel.LastID, sel.Since, sel.Until = f.FirstID, f.LastID, f.Since, f.Until
	if !f.Since.IsZero() || !f.Until.IsZero() {
		if err := t.TellsAge(sel.TimeColumn); err != nil {
			return err
		}
	}
	for _, in := range []struct {
		option, column string
		values         []string
	}{
		{"router.table.field.event.id", columns.ID, f.IDs},
		{"router.route.by.field", columns.Route, f.Types},
		{"router.table.field.event.key", columns.Key, f.Keys},
	} {
		switch {
		case in.values == nil:
		case in.column == "":
			return fault.Config(fmt.Errorf("table %s has no column of %s, which the filter needs", t, in.option), "")
		default:
			sel.In = append(sel.In, table.In{Column: in.column, Values: in.values})
		}
	}
	return nil
}

// ReplayOptions say what is published once more, and how.
type ReplayOptions struct {
	Filter
	ToTopic string  // instead of the topic that the router gives; "" for that one
	Rate    float64 // the largest number of events per second; 0 for no limit
	DryRun  bool    // route the rows, and publish nothing
	SkipBad bool    // continue after an event that can't be routed, or that Kafka refuses
	State   string  // the file with an unfinished replay's progress; "" for a name derived from the filter
	// Say tells the user something in one line. Progress says how far the replay is.
	Say      func(text string)
	Progress func(step string, done, total int64)
}

// Replaying is what a replay needs beside the tables.
type Replaying struct {
	ReplayOptions
	Router *router.Router
	Sink   func() (relay.Sink, error) // called if there is something to publish
	Kafka  *kafka.Config              // nil if the records do not go to Kafka
	// Parked reads which rows have an event that waits among the parked ones. nil if no event can.
	Parked func(ctx context.Context) (Aside, error)
	Window relay.Window
	Grace  time.Duration // how long an interrupted replay waits for acknowledgements
	// Patience is how long the snapshot of the database is held while no record can be sent. 0 is
	// relay.SnapshotPatience.
	Patience time.Duration
	// Load returns what Save has kept of this replay, nil if there is nothing. Save keeps how far the replay is; nil is its end.
	Load func() ([]byte, error)
	Save func(state []byte) error
}

// A ReplayReport says what was published, or what would be.
type ReplayReport struct {
	DryRun    bool             `json:"dry_run"`
	Matched   int64            `json:"rows"`           // that the filter selects, without those of Before
	Before    uint64           `json:"rows_before"`    // that earlier, interrupted calls have dealt with
	Published int64            `json:"published"`      // events that the brokers acknowledged
	NoRecord  int64            `json:"rows_no_record"` // rows for which the router makes no record, and is right to
	Parked    int64            `json:"parked"`         // rows left out because their event is parked: only a release keeps the order of its key
	Bad       int64            `json:"bad"`            // rows that cannot be routed, or whose record was refused
	Topics    map[string]int64 `json:"topics"`         // events by topic
}

// Replay publishes rows once more, beside a relay that may run. It changes neither the slot nor the checkpoint. If it is interrupted,
// the next call with the same filter goes on behind the newest row such that it and all before it are acknowledged and written down.
func Replay(ctx context.Context, tables *Tables, what Replaying) (*ReplayReport, error) {
	what.Patience = cmp.Or(what.Patience, relay.SnapshotPatience)
	r := &replay{
		Replaying: what, tables: tables, report: ReplayReport{DryRun: what.DryRun, Topics: map[string]int64{}},
	}
	tables.subset.narrow = func(t *table.Table, sel *table.Selection) error {
		return what.narrow(t, tables.Columns(t.Relation), sel)
	}
	err := r.run(ctx)
	if bad := table.BadValue(err); bad != nil {
		err = fault.Config(fmt.Errorf("the filter does not fit its column: %w", bad), "")
	}
	return &r.report, err
}

// A replay is one call of Replay. It belongs to one goroutine.
type replay struct {
	Replaying
	report ReplayReport
	parked Aside
	asker  *kafka.Asker
	tables *Tables

	counted *reading // until the feed reads it; nil then
	feed    relay.RowFeed
	saved   time.Time // when the feed's Copy was last written

	to  pump.Pump[published] // without a Sink in a dry run, and if there is nothing to publish
	rec cdc.Record
	due time.Time // of the next event, by Rate
}

// A published is what a record was made of.
type published struct {
	number cdc.Position // that the feed gave its row
	table  *cdc.Relation
}

func (r *replay) run(ctx context.Context) (err error) {
	if err := r.load(); err != nil {
		return err
	}
	defer func() {
		r.feed.Close()
		if r.counted != nil {
			r.counted.Close()
		}
	}()
	if err := r.open(ctx); err != nil {
		return err
	}
	if r.report.Before = r.feed.Copy.Rows; r.report.Before > 0 {
		r.Say(fmt.Sprintf("an earlier replay was interrupted after %d rows; this replay continues after them", r.report.Before))
	}
	if r.Kafka != nil {
		if r.asker, err = kafka.NewAsker(*r.Kafka); err != nil {
			return err
		}
		defer r.asker.Close()
	}
	if r.Parked != nil && r.report.Matched > 0 {
		if r.parked, err = r.Parked(ctx); err != nil {
			return err
		}
	}
	if !r.DryRun && r.report.Matched > 0 {
		if err := r.save(); err != nil { // before anything is published
			return err
		}
		to, err := r.Sink()
		if err != nil {
			return err
		}
		r.to = pump.Pump[published]{
			Sink: to, Say: r.Say, Events: r.Window.Events, Bytes: int64(r.Window.Bytes), Ended: r.ended,
			Look: func(ctx context.Context) error {
				r.rows(ctx, r.to.Room())
				return r.passed()
			},
		}
		r.Say("replayed events arrive after newer events of their key; their header walpost.origin is replay")
		defer func() {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
			defer cancel()
			_ = to.Close(closing) // what is not acknowledged is repeated
		}()
	}
	return r.publishAll(ctx)
}

// open counts the rows, and has the feed read them in the same snapshot, as long as that is not freed.
func (r *replay) open(ctx context.Context) (err error) {
	if r.counted, err = r.tables.read(ctx, r.feed.Copy, ""); err != nil {
		return err
	}
	for _, t := range r.counted.left {
		sel, err := r.counted.selection(ctx, t)
		n := int64(0)
		if err == nil {
			n, err = t.Count(ctx, sel)
		}
		if err != nil {
			return err
		}
		r.report.Matched += n
	}
	r.feed.Patience, r.feed.Freed = r.Patience, func() {
		r.Say(fmt.Sprintf("no event could be sent for %s: walpost releases its snapshot of the database, and will read the remaining rows later, as they are then", r.Patience))
	}
	r.feed.Open = func(ctx context.Context, c checkpoint.Copy) (relay.Rows, error) {
		if rows := r.counted; rows != nil {
			r.counted = nil
			return rows, nil
		}
		rows, err := r.tables.read(ctx, c, "")
		if err != nil {
			return nil, err // not rows, which would be Rows that are not nil
		}
		return rows, nil
	}
	return nil
}

const (
	closeTime = 5 * time.Second
	saveEvery = time.Second
	burst     = 100 * time.Millisecond // how much of a pause Rate makes up for
)

// publishAll publishes all rows that are left.
func (r *replay) publishAll(ctx context.Context) error {
	err := r.readAll(ctx)
	r.feed.Free()
	switch {
	case err == nil && !r.DryRun:
		return r.Save(nil)
	case r.to.Sink == nil:
		return err
	}
	if stop := r.to.Drain(r.Grace); fault.NeedsPerson(stop) && !fault.NeedsPerson(err) {
		err = stop
	}
	r.feed.Acknowledge(r.safe())
	if failed := r.save(); failed != nil {
		return errors.Join(err, failed)
	}
	if ctx.Err() != nil && !fault.NeedsPerson(err) {
		err = fault.WithHint(fmt.Errorf("interrupted after %d of %d rows: %w", r.feed.Copy.Rows, int64(r.report.Before)+r.report.Matched, ctx.Err()),
			"To continue, run the same command again.")
	}
	return err
}

// readAll sends the records of all rows, and waits until they are acknowledged.
func (r *replay) readAll(ctx context.Context) error {
	for {
		if r.to.Sink != nil {
			if err := r.to.Wait(ctx, time.Time{}, r.to.Room); err != nil {
				return err
			}
		}
		var row relay.FedRow
		select {
		case row = <-r.rows(ctx, true):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch {
		case row.Err != nil:
			return row.Err
		case row.Last():
			r.feed.Take(&row)
			if r.to.Sink == nil {
				return nil
			}
			return r.to.Wait(ctx, time.Time{}, r.to.Landed)
		}
		if err := r.publish(ctx, &row); err != nil {
			return err
		}
		if err := r.passed(); err != nil {
			return err
		}
	}
}

func (r *replay) rows(ctx context.Context, room bool) <-chan relay.FedRow {
	return r.feed.Rows(ctx, time.Now(), room, func(read func()) { go read() })
}

// publish sends the record of a row.
func (r *replay) publish(ctx context.Context, row *relay.FedRow) error {
	send, ev := false, row.Event
	if ev != nil {
		ok, err := r.Router.Route(ev, &r.rec)
		switch {
		case fault.Retryable(err): // the schema registry does not answer
			return err
		case r.parked.has(ev.Row.Relation, r.tables.Columns, r.rec.EventID):
			r.report.Parked++
		case err != nil:
			bad := &relay.BadEvent{EventID: r.rec.EventID, Table: ev.Row.Relation, Because: cdc.Unroutable, Err: err}
			if err := r.skip(bad); err != nil {
				return err
			}
		case ok:
			send = true
			r.rec.Topic = cmp.Or(r.ToTopic, r.rec.Topic)
			r.rec.Headers = append(r.rec.Headers, cdc.Header{Key: relay.OriginHeader, Value: []byte(relay.OriginReplay)})
			r.newTopic(ctx)
		default:
			r.report.NoRecord++
		}
		r.Progress("replaying", int64(r.feed.Taken())+1, r.report.Matched)
	}
	switch {
	case !send:
		r.feed.Take(row)
	case r.to.Sink == nil: // a dry run
		r.report.Topics[r.rec.Topic]++
		r.feed.Take(row)
	default:
		if err := r.to.Wait(ctx, r.turn(), r.to.Room); err != nil {
			return err
		}
		r.to.Send(&r.rec, published{r.feed.Take(row), ev.Row.Relation})
	}
	return nil
}

// safe is the newest number of the feed such that its row and all before it are acknowledged, or gave no record.
func (r *replay) safe() cdc.Position {
	if oldest, ok := r.to.Oldest(); ok {
		return oldest.number - 1
	}
	return cdc.Numbered(r.feed.Taken())
}

// passed notes how far the replay is, and writes it down now and then.
func (r *replay) passed() error {
	if r.feed.Acknowledge(r.safe()) && r.to.Sink != nil && time.Since(r.saved) >= saveEvery {
		return r.save()
	}
	return nil
}

// newTopic warns of the record's topic when it is the first one there.
func (r *replay) newTopic(ctx context.Context) {
	if _, known := r.report.Topics[r.rec.Topic]; known {
		return
	}
	r.report.Topics[r.rec.Topic] = 0
	if r.asker == nil {
		return
	}
	if t := r.asker.Topic(ctx, r.rec.Topic); strings.Contains(t.Settings["cleanup.policy"], "compact") {
		r.Say(fmt.Sprintf("topic %s is compacted: a replayed event replaces the newer events of its key", r.rec.Topic))
	}
}

// turn says when the next event may be sent.
func (r *replay) turn() time.Time {
	if r.Rate == 0 {
		return time.Time{}
	}
	if earliest := time.Now().Add(-burst); r.due.Before(earliest) {
		r.due = earliest
	}
	at := r.due
	r.due = at.Add(time.Duration(min(float64(time.Second)/r.Rate, 1<<62))) // the conversion of a larger number may be negative
	return at
}

// ended takes the end of a record.
func (r *replay) ended(sent published, a *cdc.Ack) error {
	if a.Err == nil {
		r.report.Published++
		r.report.Topics[a.Topic]++
		return nil
	}
	bad := &relay.BadEvent{EventID: a.EventID, Table: sent.table, Topic: a.Topic, Err: a.Err}
	if refusal, ok := errors.AsType[*cdc.Refusal](a.Err); ok {
		bad.Because = refusal.Reason
	}
	return r.skip(bad)
}

// skip passes over a bad event, or returns why the replay ends at it.
func (r *replay) skip(bad *relay.BadEvent) error {
	if bad.Because == "" { // the sink cannot write at all
		return bad
	}
	if !r.SkipBad && !r.DryRun {
		return fault.Person(bad, cmp.Or(fault.Hint(bad.Err), "Fix the cause.")+
			" Then run the same command again: the replay continues at this event. Or add --skip-bad: the replay then reports such events and continues after them.")
	}
	r.report.Bad++
	r.Say("bad: " + bad.Error())
	return nil
}
