package poll

import (
	"context"
	"fmt"
	"math"

	"github.com/walpost/walpost/internal/pg"
)

// A horizon says, for a table with many undelivered rows, how far behind a range its rows can overtake. To
// look at all rows behind each range would cost the square of their number.
//
// It is made in one snapshot, and holds for all ranges below the xmin of that snapshot: a writer that
// waited for its turn inserted after the row that it could overtake had committed. So each snapshot that
// sees the one row sees the other, too.
type horizon struct {
	upTo  uint64 // the end of the last range that it holds for
	steps []step // by from
}

// A step says that no row of a transaction at or behind from has an order below least.
type step struct {
	from  uint64
	least int64
}

// horizonRows is about how many rows are between two steps. No query reads more of them.
const horizonRows = 5 * rangeRows

// lookAhead makes a horizon in the snapshot of l, if there is none for a range that ends at end.
func (s *cursor) lookAhead(ctx context.Context, end uint64, l *look) error {
	if s.horizon != nil && end <= s.horizon.upTo {
		return nil
	}
	h := &horizon{upTo: l.xmin}
	for from := s.src.cursor.pos; from != 0; {
		next, err := s.one(ctx, fmt.Sprintf("SELECT %[1]s::text FROM %[2]s WHERE %[3]s ORDER BY %[1]s OFFSET %[4]d LIMIT 1",
			s.xid("t"), s.rows.from, s.atLeast("t", from), horizonRows))
		if err != nil {
			return err
		}
		where := s.atLeast("t", from)
		if next != 0 {
			next = max(next, from+1) // one transaction may have more rows
			where = s.condition("t", from, next)
		}
		least, _, err := s.orders(ctx, where)
		if err != nil {
			return err
		}
		h.steps = append(h.steps, step{from, least})
		from = next
	}
	for i := len(h.steps) - 2; i >= 0; i-- {
		h.steps[i].least = min(h.steps[i].least, h.steps[i+1].least)
	}
	s.horizon = h
	return nil
}

// orders are the least and the largest order of the rows that a condition selects. Without a row, the least
// is the larger one.
func (s *cursor) orders(ctx context.Context, where string) (least, most int64, err error) {
	got, err := pg.Row[struct{ Least, Most *int64 }](ctx, s.conn, "read the orders of rows",
		fmt.Sprintf("SELECT min(%[1]s) AS least, max(%[1]s) AS most FROM %[2]s WHERE %[3]s", s.rows.order, s.rows.from, where))
	least, most = math.MaxInt64, math.MinInt64
	if got.Least != nil && got.Most != nil {
		least, most = *got.Least, *got.Most
	}
	return least, most, err
}

// behind is the condition, under the alias a, for the rows behind a range that ends at end which rows of
// the range can overtake.
func (s *cursor) behind(ctx context.Context, end uint64) (string, error) {
	where := s.atLeast("a", end)
	if s.horizon == nil || end > s.horizon.upTo {
		return where, nil
	}
	_, most, err := s.orders(ctx, s.condition("t", s.src.cursor.pos, end))
	for _, st := range s.horizon.steps {
		if st.from >= end && st.least > most {
			where = s.condition("a", end, st.from)
			break
		}
	}
	return fmt.Sprintf("%s AND %s <= %d", where, s.rows.orderOf("a"), most), err
}
