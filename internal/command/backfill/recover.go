package backfill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/router"
)

// RecoverOptions say how a gap is closed.
type RecoverOptions struct {
	// Since is a commit time before which no event is missing. The default is the checkpoint's time
	// minus Overlap.
	Since time.Time
	// Overlap is how much earlier than the last confirmed commit rows are compared. It allows for clocks that are set,
	// and for commits whose times and places in the WAL are not in the same order. 0 is DefaultOverlap.
	Overlap time.Duration
	// Say is called with text for the user, in one or more lines. Ask asks a question, and reports
	// whether the answer was yes.
	Say func(text string)
	Ask func(question string) (bool, error)
}

// DefaultOverlap is the default of RecoverOptions.Overlap.
const DefaultOverlap = 10 * time.Minute

// Recovering is what a recover needs beside the tables.
type Recovering struct {
	RecoverOptions
	Slot string
	// Bound is that of source.snapshot, zero for none: the rows below it were never to be published.
	Bound pg.Bound
	// Router is not the relay's, which belongs to the relay's loop.
	Router *router.Router
	Kafka  *kafka.Config // nil if the records do not go to Kafka
	// Messages says that logical messages are events, too. They are in no table.
	Messages bool
	// SetAside reads which events are dead letters or parked, so that no row of them is published. nil if none can be.
	SetAside func(ctx context.Context) (Aside, error)
}

// Recover returns the relay's part in a recover of tables, and a function that returns the number of rows that were published, over
// all calls.
func Recover(tables *Tables, what Recovering) (copying *relay.Copying, published func() uint64) {
	what.Overlap = cmp.Or(what.Overlap, DefaultOverlap)
	rc := &recovery{Recovering: what}
	tables.subset.begin = rc.prepare
	return &relay.Copying{Origin: checkpoint.OriginRecover, Gap: rc.gap, Tables: tables}, rc.total
}

// A recovery is one call of Recover. Its methods are called by one goroutine at a time.
type recovery struct {
	Recovering

	begins  bool // this call has planned the recover
	aside   Aside
	agreed  bool     // to publish what is missing
	reading *reading // the newest

	// Of the newest reading.
	known      *comparison // of the rows with what is in Kafka
	tails      *kgo.Client // that reads the topics; nil if they cannot be read
	from       time.Time   // of their records
	unread     error       // why a topic cannot be read
	asideRows  int         // rows that are left whose event is dead or parked
	unroutable int         // others that are left and have no record
}

func (rc *recovery) say(format string, args ...any) { rc.Say(fmt.Sprintf(format, args...)) }

// gap shows what is missing, and asks whether to make a new slot if the gap needs one. begun is an unfinished copy that ends here.
func (rc *recovery) gap(_ context.Context, gap *checkpoint.Refusal, begun, next *checkpoint.Copy) error {
	rc.begins = true
	var since time.Time
	rc.say("%s", gap.Error())
	if rc.Messages && gap.NeedsSlot() {
		rc.say("logical messages in this gap are lost, because they were only in the WAL: recover publishes rows of the table")
	}
	if begun != nil && (begun.Origin == checkpoint.OriginSnapshot || begun.AnyAge) && !rc.Since.IsZero() {
		return errAnyAge()
	}
	when := "at a time that the checkpoint does not record"
	if !gap.Since.IsZero() {
		when = "at " + gap.Since.Format(time.RFC3339Nano)
		since = gap.Since.Add(-rc.Overlap)
	}
	polled := gap.Reason == checkpoint.OtherSource && gap.Record.Polled != nil && begun == nil || begun != nil && begun.Polled() != nil
	switch {
	case polled:
		since = time.Time{}
	case gap.Reason == checkpoint.OtherSource:
		rc.say("before the change, the newest event was committed %s", when)
	case gap.KeepsPosition():
		rc.say("the publication was last seen unchanged at position %s, %s", gap.From, when)
	default:
		rc.say("last confirmed: %s; the newest event up to this position was committed %s", gap.From, when)
	}
	switch {
	case begun != nil && begun.Origin == checkpoint.OriginRecover:
		rc.say("an earlier recover did not finish: walpost examines its whole gap again")
		since = begun.Since
	case begun != nil:
		since = time.Time{}
	}
	if !rc.Since.IsZero() {
		since = rc.Since
	}
	switch {
	case polled && since.IsZero():
		rc.say("the rows that are not known to be delivered may be in the gap, whatever their age")
	case since.IsZero() && next.AnyAge:
		rc.say("every row of the table may be in the gap, because the snapshot is not finished")
	case since.IsZero():
		rc.say("every row of the table may be in the gap (--since narrows it, if the age of the rows is known)")
	default:
		rc.say("rows committed since %s, and rows of unknown age, may be in the gap", since.UTC().Format(time.RFC3339))
	}
	if next.Since = since; next.After == 0 && rc.Bound.XID > 0 && rc.Bound.System == gap.Found.SystemID {
		next.After = rc.Bound.XID
	}
	if next.After > 0 {
		rc.say("older rows are left out, as source.snapshot said at the first start")
	}
	if gap.KeepsSlot() {
		rc.say("slot %s is kept, and walpost run continues from it", rc.Slot)
		return nil
	}
	if gap.Found.Polled != nil {
		return rc.ask("Read the table by polling from now on?", "Nothing was changed.")
	}
	question := fmt.Sprintf("Create a new slot %s", rc.Slot)
	if gap.Found.SlotFound.Exists {
		question = fmt.Sprintf("Drop the lost slot %s and create a new one", rc.Slot)
	}
	return rc.ask(question+"? The stream then begins at the new slot.", "Nothing was changed.")
}

func (rc *recovery) ask(question, otherwise string) error {
	yes, err := rc.Ask(question)
	if err != nil {
		return err
	}
	if !yes {
		return fmt.Errorf("%w: %s", relay.ErrDeclined, otherwise)
	}
	return nil
}

// prepare counts what is missing, and asks whether to publish it.
func (rc *recovery) prepare(ctx context.Context, r *reading) (func(*cdc.Event) (bool, error), error) {
	rc.reading, rc.known, rc.tails, rc.unread, rc.asideRows, rc.unroutable = r, nil, nil, nil, 0, 0 // frees the memory of the reading before
	if err := rc.narrow(r); err != nil {
		return nil, err
	}
	rc.widen(r)
	known, err := rc.compare(ctx, r)
	if err != nil {
		return nil, err
	}
	rc.known = known
	if rc.Kafka != nil {
		if rc.tails, err = rc.Kafka.NewClient(); err != nil {
			return nil, err
		}
		defer rc.tails.Close()
	}
	if r.spec.Rows > 0 {
		rc.say("continuing the recovery: %d rows have been published", r.spec.Rows)
	}
	// If the age of a row is not known, its event in Kafka may be old too.
	var ageless string
	if rc.from, ageless, err = rc.since(ctx, r); err != nil {
		return nil, err
	}
	if ageless != "" {
		rc.say("%s, so walpost reads the topics from their beginning; a row whose event Kafka has deleted counts as missing", ageless)
	}
	for _, t := range r.left {
		if t.Filter != "" {
			rc.say("the publication has a row filter for %s: walpost compares only rows with %s. If an UPDATE made the filter true for a row, or "+
				"the row was written before the publication had this filter, the row is published although the stream did not deliver it", t, t.Filter)
		}
	}
	if rc.SetAside != nil {
		if rc.aside, err = rc.SetAside(ctx); err != nil {
			return nil, err
		}
	}
	resumed := r.spec.Rows > 0 || len(r.spec.Finished) > 0
	known.resumed = resumed
	if resumed { // the records of rows that an earlier reading has handled must not count for equal rows that it has not come to
		for _, t := range r.reader.Tables() {
			if err := rc.count(ctx, r, t, true, known.row); err != nil {
				return nil, err
			}
		}
		rc.asideRows, rc.unroutable = 0, 0
	}
	for _, t := range r.left {
		if err := rc.count(ctx, r, t, false, func(rec *cdc.Record) {
			if !resumed {
				known.row(rec)
			}
			known.rowLeft(rec)
		}); err != nil {
			return nil, err
		}
	}
	known.left += rc.unroutable
	there := known.conclude()
	missing := known.left - there
	for _, topic := range slices.Sorted(maps.Keys(known.topics)) {
		t := known.topics[topic]
		if t.events >= 0 {
			rc.say("topic %s has %d events from the time of the gap", topic, t.events)
		}
		switch {
		case t.compacted && resumed:
			rc.say("topic %s is compacted, and an earlier call has handled some rows: walpost publishes all remaining rows of this topic, even those that "+
				"are already in Kafka, so that the newest row stays the newest event of each key", topic)
		case t.compacted && missing > 0:
			rc.say("topic %s is compacted: a row whose event was removed counts as missing. The later rows of its key are published again, so that "+
				"the newest row stays the newest event of the key", topic)
		}
	}
	if rc.unread != nil && ageless != "" {
		return nil, fault.Config(fmt.Errorf("walpost cannot find the missing rows: %s, and it cannot read the topics: %w", ageless, rc.unread),
			"Grant Read on the topics to the relay's user.")
	}
	if rc.unread != nil {
		rc.say("walpost cannot read the topics (%v): walpost publishes all rows that may be in the gap, including rows that are already in Kafka", rc.unread)
	}
	rc.say("%d rows of the table may be in the gap, %d of them are in Kafka, %d are missing (compared by %s)", known.left, there, missing, known.how())
	if known.inDoubt > 0 {
		rc.say("%d of the missing rows resemble an event in Kafka (same topic, id and key): walpost cannot tell whether they are the same events. "+
			"It publishes them, because a duplicate is better than a loss", known.inDoubt)
	}
	if rc.unroutable > 0 {
		rc.say("%d of the missing rows cannot be routed (walpost explain shows the reason): delivery.on_poison determines what happens to them", rc.unroutable)
	}
	if rc.asideRows > 0 {
		rc.say("%d other rows are left out, because their events are dead letters or parked (walpost dead list shows them)", rc.asideRows)
	}
	if err := rc.reportDeleted(ctx, r); err != nil {
		return nil, err
	}
	if missing > 0 && !rc.agreed { // a lost connection is no reason to ask again
		if err := rc.ask(fmt.Sprintf("Publish %d rows, with the header %s: %s?", missing, relay.OriginHeader, checkpoint.OriginRecover),
			"walpost run refuses to start until recover is finished. To continue, run "+fault.Command("recover")); err != nil {
			return nil, err
		}
		rc.agreed = true
	}
	var rec cdc.Record
	return func(ev *cdc.Event) (bool, error) {
		ok, err := rc.Router.Route(ev, &rec)
		switch {
		case fault.Retryable(err): // the schema registry does not answer
			return false, err
		case rc.aside.has(ev.Row.Relation, r.Columns, rec.EventID):
			return true, nil
		case err != nil || !ok:
			return false, nil //nolint:nilerr // the relay's own router finds the error too, and the policy decides
		}
		return known.take(&rec), nil
	}, nil
}

// narrow takes the flags of a call that continues an earlier one. Only what this call reads is narrowed: the checkpoint keeps the
// whole gap.
func (rc *recovery) narrow(r *reading) error {
	switch {
	case rc.begins:
	case !rc.Since.IsZero() && r.spec.AnyAge:
		return errAnyAge()
	case !rc.Since.IsZero() && rc.Since.Before(r.spec.Since) && (r.spec.Rows > 0 || len(r.spec.Finished) > 0 || r.spec.At.Table != ""):
		return fault.Config(fmt.Errorf("--since: an earlier call examined rows from %s on, and recover cannot go back to older rows", r.spec.Since.UTC().Format(time.RFC3339)),
			"Leave --since out. When recover has finished, run "+fault.Command("verify")+" to find older rows that are missing.")
	case rc.Since.IsZero() && rc.Overlap != DefaultOverlap:
		rc.say("--overlap has no effect: an earlier call has already set the time from which rows are examined (use --since to change it)")
	case !rc.Since.IsZero():
		before := "of any age"
		if !r.spec.Since.IsZero() {
			before = "since " + r.spec.Since.UTC().Format(time.RFC3339)
		}
		rc.say("the earlier call examined rows committed %s; this call examines rows committed since %s, and rows of unknown age", before, rc.Since.UTC().Format(time.RFC3339))
		r.spec.Since = rc.Since
	}
	return nil
}

// widen examines older rows too if the time of a row can look older than it is: nothing says where a time without a zone was taken.
func (rc *recovery) widen(r *reading) {
	var most time.Duration
	for _, t := range r.left {
		most = max(most, t.AgeError(r.TimeColumn))
	}
	if most > 0 && !r.spec.Since.IsZero() {
		r.spec.Since = r.spec.Since.Add(-most)
		rc.say("source.time_column has no time zone, so a row can look up to %s older than it is: walpost examines rows from %s on", most, r.spec.Since.UTC().Format(time.RFC3339))
	}
}

func errAnyAge() error {
	return fault.Config(errors.New("--since: the snapshot is not finished, so a row of any age may be missing"), "Leave --since out.")
}

// since returns the time from which on the topics have the events of the rows in the gap. It is zero if ageless says why that is unknown.
func (rc *recovery) since(ctx context.Context, r *reading) (from time.Time, ageless string, err error) {
	const some = "some rows have no known age"
	for _, t := range r.left {
		if r.spec.Polled() != nil {
			oldest, known, err := t.Oldest(ctx, r.asked())
			if err != nil || !known {
				return time.Time{}, some, err
			}
			return oldest.Add(-rc.Overlap), "", nil // a relay that polls reads one table
		}
		known, err := t.Cuts(ctx, r.spec.Since, r.TimeColumn)
		if err != nil {
			return time.Time{}, "", err
		}
		if !known {
			ageless = cmp.Or(t.AgeUnknown(r.spec.Since, r.TimeColumn), some)
		}
	}
	if ageless != "" {
		return time.Time{}, ageless, nil
	}
	return r.spec.Since, "", nil
}

// count routes the rows of a table that may be in the gap, and counts those that have a record: the rows that are left, or if whole is set
// those that an earlier call has published too. The relay's policy decides about a row that has none.
func (rc *recovery) count(ctx context.Context, r *reading, t *table.Table, whole bool, add func(rec *cdc.Record)) error {
	sel, err := r.selection(ctx, t)
	if err != nil {
		return err
	}
	if whole {
		sel.After = table.Place{}
	}
	rows, err := t.Select(ctx, sel)
	if err != nil {
		return err
	}
	var rec cdc.Record
	for {
		ev, err := r.next(rows)
		if err != nil || ev == nil {
			return err
		}
		ok, bad := rc.Router.Route(ev, &rec)
		switch {
		case fault.Retryable(bad): // the schema registry does not answer
			return bad
		case bad == nil && !ok:
		case rc.aside.has(t.Relation, r.Columns, rec.EventID):
			rc.asideRows++
		case bad != nil:
			rc.unroutable++
		default:
			if err := rc.tail(ctx, rec.Topic, t.TellsAge(r.TimeColumn) == nil); err != nil {
				return err
			}
			add(&rec)
		}
	}
}

// tail reads the events of a topic when the first row is routed to it. aged says that the age of the rows is known.
func (rc *recovery) tail(ctx context.Context, topic string, aged bool) error {
	if rc.known.topics[topic] != nil {
		return nil
	}
	t := &comparedTopic{}
	rc.known.topics[topic] = t
	if rc.tails == nil {
		t.events = -1
		return nil
	}
	full := errors.New("too many events")
	open, err := kafka.TailRecords(ctx, rc.tails, topic, rc.from, func(r *kafka.TailRecord) error {
		if !rc.known.record(topic, t, r) {
			return full
		}
		return nil
	})
	switch {
	case errors.Is(err, full):
		hint := "Narrow the gap with --since: a time before which nothing is missing."
		if rc.reading.spec.AnyAge {
			hint = "The snapshot is not finished, so --since cannot narrow the gap. " + fault.Command("run") + " says how to give this recover up; then publish the missing rows with " + fault.Command("replay") + "."
		} else if !aged {
			hint = "Set source.time_column to the column with the time of the insert. Then --since narrows the gap."
		}
		return fault.Config(fmt.Errorf("topic %s: more than %d events to compare with", topic, len(rc.known.events)-1), hint)
	case ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	case err != nil:
		t.events, rc.unread = -1, err
		return nil
	case open != "":
		rc.say("topic %s: %s: an event behind it counts as missing", topic, open)
	}
	info, err := kafka.DescribeTopic(ctx, rc.tails, topic, "cleanup.policy") // if nothing may be asked, the topic counts as one that keeps all events
	t.compacted = err == nil && strings.Contains(info.Settings["cleanup.policy"], "compact")
	return nil //nolint:nilerr // see above
}

// idOf returns the event id in the record's header, nil if it has none.
func idOf(rec *cdc.Record) []byte {
	for i := range rec.Headers {
		if rec.Headers[i].Key == "id" {
			return rec.Headers[i].Value
		}
	}
	return nil
}

// reportDeleted says how many rows are not in the table any more, as far as the order column tells.
func (rc *recovery) reportDeleted(ctx context.Context, r *reading) error {
	column := r.OrderColumn
	// The table is read as it is now and not as of the slot, because a sequence knows no snapshot.
	now, err := r.From.Open(ctx, table.Options{})
	if err != nil {
		return err
	}
	defer now.Close()
	for _, t := range now.Tables() {
		if !slices.ContainsFunc(r.left, func(left *table.Table) bool { return left.Table == t.Table }) {
			continue
		}
		if column == "" {
			rc.say("deleted rows of %s that were not published are lost; walpost cannot count them, because source.order_column names no identity column", t)
			continue
		}
		holes, unknown, err := t.Holes(ctx, column, r.spec.Since, r.TimeColumn)
		switch {
		case err != nil:
			return err
		case unknown != "":
			rc.say("deleted rows of %s that were not published are lost; walpost cannot count them, because %s", t, unknown)
		case holes == 0:
			rc.say("no row of %s is gone: column %s has no missing numbers", t, column)
		default:
			rc.say("column %s of %s has %d missing numbers: at most this many rows were deleted, and those that were not published are lost (a rollback also leaves a missing number)",
				column, t, holes)
		}
	}
	return nil
}

// total is the number of rows published, over all calls.
func (rc *recovery) total() uint64 {
	if rc.reading == nil {
		return 0
	}
	return rc.reading.spec.Rows + rc.reading.given
}
