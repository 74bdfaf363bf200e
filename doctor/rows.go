package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/table"
)

const (
	sampleRows = 2000 // of each table
	// sampleLargest is how many more are looked at for their size, where a table has more rows.
	sampleLargest = 20
	sampleTime    = 10 * time.Second
	// sampleTopics bounds what the brokers are asked about: a table whose rows each have a topic of their own is wrong anyway.
	sampleTopics = 100
)

// checkRows routes some of the rows that are in the tables now, as Run would: the topics that they go to, with what is to be known of the
// records for each, and what is wrong with rows. A table that cannot be read is no precondition of the stream: what is known
// without it counts.
func checkRows(ctx context.Context, run *Run) (topics map[string]topicTraffic, found []Finding) {
	ctx, cancel := context.WithTimeout(ctx, 2*sampleTime)
	defer cancel()
	s := sampler{List: condition.List{Side: Postgres}, run: run, topics: map[string]topicTraffic{}}
	reader, err := s.open(ctx)
	if err != nil {
		return s.topics, nil // checkPostgres says why the database cannot be reached, or the table not be read
	}
	tables, timed := reader.Tables(), reader.KeepsCommitTimes()
	reader.Close()
	const order = "order of rows"
	column := run.Source.Config().OrderColumn
	if !timed && column == "" && len(tables) > 0 {
		s.Warn(order, fix.ByWords("Set source.order_column to a column whose values increase with every row, such as an identity. Or set the server's track_commit_timestamp to on, which needs a restart and covers later rows only."),
			"neither track_commit_timestamp nor source.order_column records the order in which rows were written: if the slot is lost, walpost recover can publish the missing rows only with --unordered")
	}
	for i, t := range tables {
		if column != "" && t.Relation.Index(column) < 0 {
			s.Warn(order, fix.ByWords("Set source.order_column to a column of the table that is published, or add the column to the publication's column list."),
				"table %s has no published column %s (source.order_column): a snapshot and walpost recover stop with an error", t, column)
		}
		s.unusedColumns(t)
		s.table(ctx, i, t)
	}
	return s.topics, s.Found
}

// A sampler routes rows into topics.
type sampler struct {
	condition.List
	run      *Run
	topics   map[string]topicTraffic
	rowsRead int
	bad      error // the first row that gives no record

	unanswered error // of the schema registry; then no further row is read
}

// unusedColumns finds columns of text or headers that an application probably writes for its consumers, and that are in no record.
func (s *sampler) unusedColumns(t *table.Table) {
	needs, err := s.run.Router.Needs(t.Relation)
	if err != nil {
		return // the finding about the columns says it
	}
	source := s.run.Source.Config()
	needs = append(needs, source.OrderColumn, source.TimeColumn)
	var texts []string
	headers := false
	for _, c := range t.Relation.Columns {
		switch {
		case slices.Contains(needs, c.Name):
		case c.TypeOID == pgtype.TextOID || c.TypeOID == pgtype.VarcharOID:
			texts = append(texts, c.Name)
		case c.Name == outboxtable.HeadersColumn:
			headers = c.TypeOID == pgtype.JSONBOID || c.TypeOID == pgtype.JSONOID
		}
	}
	unused := outboxtable.Extra(texts)
	if placement := outboxtable.Placement(unused, headers); placement != "" {
		if headers {
			unused = append(unused, outboxtable.HeadersColumn)
		}
		s.Warn("unused columns of "+t.String(), fix.ByWords("To publish them as headers, add "+placement+" to router.table.fields.additional.placement."),
			"records leave out the columns %s of %s", condition.Some(unused), t)
	}
}

func (s *sampler) open(ctx context.Context) (*table.Reader, error) {
	return s.run.Rows.Open(ctx, table.Options{Timeout: sampleTime})
}

// table looks at rows of the i-th table.
func (s *sampler) table(ctx context.Context, i int, t *table.Table) {
	name := "rows of " + t.String()
	s.rowsRead, s.bad = 0, nil
	column := s.run.Source.Config().OrderColumn
	if t.Relation.Index(column) < 0 {
		column = ""
	}
	// The newest rows are those that a relay is about to deliver, or any rows if finding them takes too long.
	err := s.read(ctx, i, table.Selection{Newest: sampleRows, Order: table.AsWritten(column)})
	if err != nil && !fault.NeedsPerson(err) {
		s.rowsRead = 0
		err = s.read(ctx, i, table.Selection{Newest: sampleRows})
	}
	if err != nil {
		verdict := Warn // the stream does not need the right to read the table
		if fault.NeedsPerson(err) {
			verdict = Fail
		}
		s.Add(verdict, name, fix.ByWords(fault.Hint(err)), "the rows cannot be read: %s", err)
		return
	}
	what := fmt.Sprint(s.rowsRead)
	if s.rowsRead == sampleRows {
		// Those that matter most for max.message.bytes. Finding them reads the whole table, though none of its values.
		err := s.read(ctx, i, table.Selection{
			Newest: sampleLargest, Order: table.Order{By: table.BySize, Column: s.run.Router.Columns(t.Relation).Payload},
		})
		if what += fmt.Sprintf(" and the %d largest", sampleLargest); err != nil {
			what = fmt.Sprintf("%d; the largest could not be read: %v", sampleRows, err)
		}
	}
	switch {
	case s.unanswered != nil:
		s.Warn(name, fix.ByWords(cmp.Or(fault.Hint(s.unanswered), "Run walpost check again once the registry answers.")), "the rows were not checked: %s", s.unanswered)
	case s.bad != nil:
		s.Warn(name, fix.ByWords(s.badRow()), "a row of the table cannot be published: %s", s.bad)
	case s.rowsRead > 0:
		s.OK(name, "walpost can publish all rows that it read (%s)", what)
	}
}

// badRow says what becomes of a row that gives no record, and what to do.
func (s *sampler) badRow() string {
	retried := cmp.Or(s.run.Retried, "If walpost has already skipped or parked the event, or has written it to the dead letter topic,")
	return "A row like this one " + s.run.Retries + fate(s.run.Kafka) + ": walpost explain shows what is wrong with the row. " + retried + " repair or delete the row to clear this warning."
}

// read routes what a selection reads, on a connection of its own: one that a timeout ended reads nothing more.
func (s *sampler) read(ctx context.Context, i int, sel table.Selection) error {
	if s.unanswered != nil {
		return nil
	}
	reader, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer reader.Close()
	rows, err := reader.Tables()[i].Select(ctx, sel)
	if err != nil {
		return err
	}
	var rec cdc.Record
	for {
		ev, err := rows.Next()
		if ev == nil || err != nil {
			return err
		}
		s.rowsRead++
		ok, err := s.run.Router.Route(ev, &rec)
		traffic, known := s.topics[rec.Topic]
		switch {
		case fault.Retryable(err): // the schema registry does not answer
			s.unanswered = err
			return nil
		case err != nil && s.bad == nil:
			s.bad = err
		case err == nil && ok && (known || len(s.topics) < sampleTopics):
			traffic.add(&rec)
			s.topics[rec.Topic] = traffic
		}
	}
}
