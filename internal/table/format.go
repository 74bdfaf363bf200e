package table

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// A Format is what a SELECT gives of each row of a table, as t: the columns of the relation, the time of the row, and more.
type Format struct {
	Relation *cdc.Relation
	Time     string // an expression in microseconds since 1970 (pg.Micros), NULL if the time is unknown
	More     []string
}

// List is the select list.
func (f *Format) List() string {
	return strings.Join(append([]string{columns(f.Relation), f.Time}, f.More...), ", ")
}

// columns is the select list of the relation's columns.
func columns(rel *cdc.Relation) string {
	names := make([]string, len(rel.Columns))
	for i := range rel.Columns {
		names[i] = "t." + pgname.QuoteIdent(rel.Columns[i].Name)
	}
	return strings.Join(names, ", ")
}

// Insert makes ev the Insert of a row that the SELECT gave. Its values are those of got, in ev's slice if that is long enough. now is
// the time of a row that has none; timed says that it has one. more are the values of More.
func (f *Format) Insert(ev *cdc.Event, got [][]byte, now time.Time) (more [][]byte, timed bool, err error) {
	n := len(f.Relation.Columns)
	if len(got) != n+1+len(f.More) {
		return nil, false, fmt.Errorf("%w: %d columns", pg.ErrAnswer, len(got))
	}
	at := now.UTC().Truncate(time.Microsecond)
	if timed = got[n] != nil; timed {
		us, err := strconv.ParseInt(string(got[n]), 10, 64)
		if err != nil {
			return nil, false, fmt.Errorf("%w: time %q", pg.ErrAnswer, got[n])
		}
		at = time.UnixMicro(us).UTC()
	}
	values := ev.Row.Values[:0]
	for i := range n {
		values = append(values, cdc.Value{Bytes: got[i]})
	}
	*ev = cdc.Event{Kind: cdc.Insert, Time: at, Row: cdc.Row{Relation: f.Relation, Values: values}}
	return got[n+1:], timed, nil
}
