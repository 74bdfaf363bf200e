package poll

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/pg"
)

// A rowReader writes the SELECT that reads rows of the table, and makes events of what it gives. The
// values are the text that a stream would give, because the connection has the same settings.
type rowReader struct {
	rel     *cdc.Relation // the columns, in their order
	table   string        // in a FROM clause, without an alias
	from    string        // the same as t
	order   string        // the order column, with t
	id, key string        // the columns as text, with t; key is "" for none
	when    string        // an expression in microseconds since 1970, NULL if unknown
	more    []string      // further expressions, for row.more
}

// A row is one row as an Insert that owns its bytes.
type row struct {
	order int64
	id    string
	event *cdc.Event
	more  []cdc.Value
}

func (s *Settings) rowReader(f *Facts) *rowReader {
	rel := f.Table.Streamed(nil, f.Server.Version)
	if s.Claims() {
		rel = withoutClaims(rel)
	}
	text := func(column string) string {
		if column == "" {
			return ""
		}
		return "t." + pg.QuoteIdent(column) + "::text"
	}
	r := &rowReader{rel: rel, table: "ONLY " + s.Table.SQL(), order: "t." + pg.QuoteIdent(s.OrderColumn), id: text(s.ID(rel)), key: text(s.Key(rel)), when: "NULL"}
	if r.id == "" {
		r.id = "''"
	}
	if f.Table.Kind == "p" {
		r.table = s.Table.SQL()
	}
	r.from = r.as("t")
	micros := func(timestamptz string) string { return "(extract(epoch FROM " + timestamptz + ") * 1000000)::bigint" }
	switch i := rel.Index(s.TimeColumn); {
	case f.CommitTimes && !s.Claims(): // a claim is an UPDATE, which has another commit time
		r.when = micros("pg_xact_commit_timestamp(t.xmin)")
	case i >= 0 && rel.Columns[i].BaseName == "timestamptz":
		r.when = "CASE WHEN isfinite(t." + pg.QuoteIdent(s.TimeColumn) + ") THEN " + micros("t."+pg.QuoteIdent(s.TimeColumn)) + " END"
	}
	if s.Claims() {
		r.more = append(r.more, "t.attempts")
		if r.key != "" {
			r.more = append(r.more, r.key)
		}
	}
	return r
}

// as is the table in a FROM clause, under an alias. orderOf, idOf and keyOf are its columns.
func (r *rowReader) as(alias string) string      { return r.table + " " + alias }
func (r *rowReader) orderOf(alias string) string { return alias + strings.TrimPrefix(r.order, "t") }
func (r *rowReader) idOf(alias string) string    { return strings.Replace(r.id, "t.", alias+".", 1) }
func (r *rowReader) keyOf(alias string) string   { return alias + strings.TrimPrefix(r.key, "t") }

// list is the select list that scan reads.
func (r *rowReader) list() string {
	names := make([]string, len(r.rel.Columns), len(r.rel.Columns)+3)
	for i := range r.rel.Columns {
		names[i] = "t." + pg.QuoteIdent(r.rel.Columns[i].Name)
	}
	return strings.Join(append(append(names, r.order, r.id, r.when), r.more...), ", ")
}

// scan makes a row of what a SELECT of list gave. now is the time of a row that has none.
func (r *rowReader) scan(got [][]byte, now time.Time) (row, error) {
	n := len(r.rel.Columns)
	if len(got) != n+3+len(r.more) {
		return row{}, fmt.Errorf("read the table: %w: %d columns", pg.ErrAnswer, len(got))
	}
	order, err := strconv.ParseInt(string(got[n]), 10, 64)
	if err != nil {
		return row{}, fmt.Errorf("read the table: %w: order %q", pg.ErrAnswer, got[n])
	}
	at := now.UTC().Truncate(time.Microsecond)
	if got[n+2] != nil {
		us, err := strconv.ParseInt(string(got[n+2]), 10, 64)
		if err != nil {
			return row{}, fmt.Errorf("read the table: %w: time %q", pg.ErrAnswer, got[n+2])
		}
		at = time.UnixMicro(us).UTC()
	}
	ev := &cdc.Event{Kind: cdc.Insert, Time: at, Row: cdc.Row{Relation: r.rel, Values: make([]cdc.Value, n)}}
	for i := range ev.Row.Values {
		ev.Row.Values[i].Bytes = got[i]
	}
	one := row{order: order, id: string(got[n+1]), event: ev.Clone()}
	for _, value := range got[n+3:] {
		one.more = append(one.more, cdc.Value{Bytes: bytes.Clone(value)})
	}
	return one, nil
}

// A page bounds what is held in memory. One row may be larger.
const (
	pageRows  = 2000
	pageBytes = 8 << 20
	firstRows = 16 // fetched before the size of a row is known
)

// page reads rows of a query in its order, until it has a page. It reports whether the query has no
// more rows. keep says which rows count. The caller has begun a transaction.
func (r *rowReader) page(ctx context.Context, conn *pgconn.PgConn, query string, keep func(*row) bool) (rows []row, all bool, err error) {
	const step = "read the table"
	if _, err := conn.Exec(ctx, "DECLARE walpost NO SCROLL CURSOR FOR "+query).ReadAll(); err != nil {
		return nil, false, pg.Classify(fmt.Errorf("%s: %w", step, err))
	}
	size, seen := 0, 0
	for n := firstRows; len(rows) < pageRows && size < pageBytes; {
		result := conn.Exec(ctx, fmt.Sprintf("FETCH %d FROM walpost", n))
		got, now := 0, time.Now()
		for result.NextResult() {
			reader := result.ResultReader()
			for reader.NextRow() {
				row, err := r.scan(reader.Values(), now)
				if err != nil {
					return nil, false, err // the connection is of no use any more
				}
				got++
				for _, v := range row.event.Row.Values {
					size += len(v.Bytes)
				}
				if keep(&row) {
					rows = append(rows, row)
				}
			}
		}
		if err := result.Close(); err != nil {
			return nil, false, pg.Classify(fmt.Errorf("%s: %w", step, err))
		}
		if seen += got; got < n {
			all = true
			break
		}
		n = min(pageRows, max(1, (pageBytes-size)/max(1, size/seen)))
	}
	return rows, all, nil
}
