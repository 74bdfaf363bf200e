package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
)

// idColumn is the column with the event id of the tables in these tests.
func idColumn(rel *cdc.Relation) string {
	for _, c := range rel.Columns {
		if c.Name == "event" {
			return c.Name
		}
	}
	return ""
}

// A row stays while its event is dead or parked, whatever the type and the text of its id. It goes when the event is not open any more.
// While nothing tells which events are open, all rows stay.
func TestRowsOfOpenBadEventsStay(t *testing.T) {
	for column, version := range map[string]string{"text": oldestAndNewest[0], "char(30)": oldestAndNewest[1]} {
		t.Run(column, func(t *testing.T) {
			kept, failure := []string{`a "b" \\ 'c', {d}`, ""}, error(nil)
			if column == "char(30)" {
				kept[0] = fmt.Sprintf("%-30s", kept[0]) // as the server gives it
			}
			p := newPlace(t, version, "CREATE TABLE outbox (id int PRIMARY KEY, event "+column+", created_at timestamptz DEFAULT now() - interval '1 day')",
				Settings{Config: Config{Mode: Delete}, IDColumn: idColumn, Kept: func(context.Context) ([]string, error) { return kept, failure }})
			p.exec(`INSERT INTO outbox VALUES (1, 'x'), (2, $$a "b" \\ 'c', {d}$$), (3, NULL), (4, 'y')`)
			p.run()
			p.confirm()
			failure = errors.New("no brokers")
			if err := p.pass(p.ctx); !errors.Is(err, failure) || !slices.Equal(p.ids(), []int{1, 2, 3, 4}) || !strings.Contains(p.Status().Waiting, "dead or parked") {
				t.Errorf("%v, %v, %+v", err, p.ids(), p.Status())
			}
			failure = nil
			p.settle()
			if got := p.ids(); !slices.Equal(got, []int{2, 3}) {
				t.Errorf("left: %v", got)
			}
			p.run()
			if hints := strings.Join(p.Status().Hints, "; "); !strings.Contains(hints, "the rows of dead and parked events stay") {
				t.Errorf("hints: %s", hints)
			}
			kept = nil
			p.settle()
			if got := p.ids(); len(got) != 0 {
				t.Errorf("left: %v", got)
			}
			p.run()
			if hints := strings.Join(p.Status().Hints, "; "); strings.Contains(hints, "dead") {
				t.Errorf("hints: %s", hints)
			}
		})
	}
}

// settle passes until what is confirmed now counts.
func (p *place) settle() {
	p.Helper()
	for range 3 {
		p.confirm()
		p.run()
	}
}

// A partition with such a row stays, and the status says why.
func TestPartitionsOfOpenBadEventsStay(t *testing.T) {
	kept := []string{"2"}
	p := newPlace(t, "", "CREATE TABLE outbox (id int, event int, created_at timestamptz) PARTITION BY RANGE (created_at)",
		Settings{Config: Config{Mode: DropPartitions, Keep: 48 * time.Hour}, IDColumn: idColumn, Kept: func(context.Context) ([]string, error) { return kept, nil }})
	p.exec(part("outbox_now", 0, 1), part("outbox_a", -5, -4), part("outbox_b", -4, -3),
		"INSERT INTO outbox VALUES (1, 1, date_trunc('day', now()) + '-5 days 2 hours'), (2, 2, date_trunc('day', now()) + '-4 days 2 hours')")
	p.settle()
	if got := p.parts(); slices.Contains(got, "outbox_a") || !slices.Contains(got, "outbox_b") {
		t.Errorf("left: %v", got)
	}
	if hints := strings.Join(p.Status().Hints, "; "); !strings.Contains(hints, "partition public.outbox_b stays") {
		t.Errorf("hints: %s", hints)
	}
	kept = nil
	p.settle()
	if got := p.parts(); slices.Contains(got, "outbox_b") {
		t.Errorf("left: %v", got)
	}
}
