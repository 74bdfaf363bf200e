package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/outboxtable"
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
func checkRows(ctx context.Context, run *Run) (topics map[string]Traffic, found []Finding) {
	ctx, cancel := context.WithTimeout(ctx, 2*sampleTime)
	defer cancel()
	s := sampler{run: run, topics: map[string]Traffic{}}
	run.Router.SetRunID("00000000-0000-7000-8000-000000000000") // as long as a real one
	reader, err := s.open(ctx)
	if err != nil {
		return s.topics, nil // CheckPostgres says why the database cannot be reached, or the table not be read
	}
	tables, timed := reader.Tables(), reader.KeepsCommitTimes()
	reader.Close()
	if !timed && run.Source.Config().OrderColumn == "" && len(tables) > 0 {
		found = append(found, Finding{
			Side: Postgres, Name: "order of rows", Verdict: Warn,
			Why: "neither track_commit_timestamp nor source.order_column records the order in which rows were written: if the slot is lost, walpost recover can publish the missing rows only with --unordered",
			Fix: fix.ByWords("Set source.order_column to a column that grows with every row, such as an identity. Or set the server's track_commit_timestamp to on, which needs a restart and covers later rows only."),
		})
	}
	for i, t := range tables {
		if column := run.Source.Config().OrderColumn; column != "" && t.Relation.Index(column) < 0 {
			found = append(found, Finding{
				Side: Postgres, Name: "order of rows", Verdict: Warn,
				Why: fmt.Sprintf("table %s has no published column %s, which source.order_column names: a snapshot and walpost recover stop with an error", t, column),
				Fix: fix.ByWords("Set source.order_column to a column that the table has and the publication publishes, or add the column to the column list of the publication."),
			})
		}
		found = append(found, unusedColumns(run, t)...)
		found = append(found, s.table(ctx, i, t)...)
	}
	return s.topics, found
}

// unusedColumns finds text columns that an application probably writes for its consumers, and that are in no record.
func unusedColumns(run *Run, t *table.Table) []Finding {
	needs, err := run.Router.Needs(t.Relation)
	if err != nil {
		return nil // the finding about the columns says it
	}
	source := run.Source.Config()
	needs = append(needs, source.OrderColumn, source.TimeColumn)
	var texts []string
	for _, c := range t.Relation.Columns {
		if (c.TypeOID == pgtype.TextOID || c.TypeOID == pgtype.VarcharOID) && !slices.Contains(needs, c.Name) {
			texts = append(texts, c.Name)
		}
	}
	unused := outboxtable.Extra(texts)
	placement := outboxtable.Placement(unused)
	if placement == "" {
		return nil
	}
	return []Finding{{
		Side: Postgres, Name: "unused columns of " + t.String(), Verdict: Warn,
		Why: fmt.Sprintf("no record has the text columns %s of %s", condition.Some(unused), t),
		Fix: fix.ByWords("To publish them as headers, add " + placement + " to router.table.fields.additional.placement."),
	}}
}

// A sampler routes rows into topics.
type sampler struct {
	run    *Run
	topics map[string]Traffic
	looked int
	bad    error // the first row that gives no record
}

func (s *sampler) open(ctx context.Context) (*table.Reader, error) {
	return s.run.Rows.Open(ctx, table.Options{Timeout: sampleTime})
}

// table looks at rows of the i-th table.
func (s *sampler) table(ctx context.Context, i int, t *table.Table) []Finding {
	name := "rows of " + t.String()
	s.looked, s.bad = 0, nil
	if err := s.read(ctx, i, table.Selection{Newest: sampleRows}); err != nil {
		verdict := Warn // the stream does not need the right to read the table
		if fault.NeedsPerson(err) {
			verdict = Fail
		}
		return []Finding{{Side: Postgres, Name: name, Verdict: verdict, Why: "the rows cannot be read: " + err.Error(), Fix: fix.ByWords(fault.Hint(err))}}
	}
	looked := fmt.Sprint(s.looked)
	if s.looked == sampleRows {
		// Those that matter most for max.message.bytes. Finding them reads the whole table, though none of its values.
		err := s.read(ctx, i, table.Selection{
			Newest: sampleLargest, Order: table.Order{By: table.BySize, Column: s.run.Router.Columns(t.Relation).Payload},
		})
		if looked += fmt.Sprintf(" and the %d largest", sampleLargest); err != nil {
			looked = fmt.Sprintf("%d; the largest could not be read: %v", sampleRows, err)
		}
	}
	switch {
	case s.bad != nil:
		return []Finding{{
			Side: Postgres, Name: name, Verdict: Warn, Why: "a row of the table cannot be published: " + s.bad.Error(),
			Fix: fix.ByWords(s.badRow()),
		}}
	case s.looked > 0:
		return []Finding{{Side: Postgres, Name: name, Verdict: OK, Why: "walpost can publish all rows that it read (" + looked + ")"}}
	}
	return nil
}

// badRow says what becomes of a row that gives no record, and what to do.
func (s *sampler) badRow() string {
	switch explain := ": walpost explain shows what is wrong with the row. "; {
	case s.run.Claims:
		return "A row like this one is retried as source.poll.attempts says, delays its key meanwhile, and then " + fate(s.run.Kafka) + explain +
			"If finished_at of the row is set, walpost doesn't read it again: repair or delete the row to clear this warning."
	default:
		return "A row like this one " + fate(s.run.Kafka) + explain +
			"If walpost has already skipped or parked the event, or has written it to the dead letter topic, repair or delete the row to clear this warning."
	}
}

// read routes what a selection reads, on a connection of its own: one that a timeout ended reads nothing more.
func (s *sampler) read(ctx context.Context, i int, sel table.Selection) error {
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
		s.looked++
		ok, err := s.run.Router.Route(ev, &rec)
		traffic, known := s.topics[rec.Topic]
		switch {
		case err != nil && s.bad == nil:
			s.bad = err
		case err == nil && ok && (known || len(s.topics) < sampleTopics):
			traffic.Add(&rec)
			s.topics[rec.Topic] = traffic
		}
	}
}
