package poll

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/table"
)

// A rowReader writes the SELECT that reads rows of the table, and makes events of what it gives. The
// values are the text that a stream would give, because the connection has the same settings.
type rowReader struct {
	table.Format
	facts   *pg.TableFacts
	columns rowColumns

	from, order, id, key string // as, orderOf, idOf and keyOf with t
}

// rowColumns are the columns by which polling reads rows. id and key may be empty.
type rowColumns struct{ order, id, key string }

// A row is one row as an Insert that owns its bytes.
type row struct {
	order int64
	id    string
	event *cdc.Event
	more  [][]byte
}

func (s *Settings) rowReader(f *Facts) *rowReader {
	rel := f.Table.Streamed(nil, f.Server.Version)
	if s.Claims() {
		rel = withoutClaims(rel)
	}
	r := &rowReader{facts: &f.Table, columns: rowColumns{order: s.OrderColumn, id: s.ID(rel), key: s.Key(rel)}}
	r.from, r.order, r.id, r.key = r.as("t"), r.orderOf("t"), r.idOf("t"), r.keyOf("t")
	r.Relation, r.Time, r.More = rel, "NULL", []string{r.order, r.id}
	switch i := rel.Index(s.TimeColumn); {
	case f.CommitTimes && !s.Claims(): // a claim is an UPDATE, which has another commit time
		r.Time = pg.Micros("pg_xact_commit_timestamp(t.xmin)")
	case i >= 0 && rel.Columns[i].BaseName == "timestamptz":
		column := "t." + pgname.QuoteIdent(s.TimeColumn)
		r.Time = "CASE WHEN isfinite(" + column + ") THEN " + pg.Micros(column) + " END"
	}
	if s.Claims() {
		r.More = append(r.More, "t.attempts")
		if r.key != "" {
			r.More = append(r.More, r.key)
		}
	}
	return r
}

// as is the table in a FROM clause, under an alias. orderOf is its order column. idOf and keyOf are the
// event id and the key as text, and keyColumn is the key as it is; "" for no key.
func (r *rowReader) as(alias string) string { return r.facts.From(alias) }

func (r *rowReader) orderOf(alias string) string {
	return alias + "." + pgname.QuoteIdent(r.columns.order)
}

func (r *rowReader) idOf(alias string) string {
	if r.columns.id == "" {
		return "''"
	}
	return alias + "." + pgname.QuoteIdent(r.columns.id) + "::text"
}

func (r *rowReader) keyColumn(alias string) string {
	if r.columns.key == "" {
		return ""
	}
	return alias + "." + pgname.QuoteIdent(r.columns.key)
}

func (r *rowReader) keyOf(alias string) string {
	if r.columns.key == "" {
		return ""
	}
	return r.keyColumn(alias) + "::text"
}

// scan makes a row of what a SELECT of List gave. now is the time of a row that has none.
func (r *rowReader) scan(got [][]byte, now time.Time) (one row, err error) {
	var ev cdc.Event
	more, _, err := r.Insert(&ev, got, now)
	if err == nil {
		one.order, err = strconv.ParseInt(string(more[0]), 10, 64)
	}
	if err != nil {
		return row{}, fmt.Errorf("read the table: %w", err)
	}
	one.id, one.event = string(more[1]), ev.Clone()
	for _, value := range more[2:] {
		one.more = append(one.more, bytes.Clone(value))
	}
	return one, nil
}

// unchanged reports whether the name still stands for the table that the session has examined, with the same columns.
func (r *rowReader) unchanged(ctx context.Context, conn *pgconn.PgConn) error {
	found, err := pg.Row[struct{ Shape string }](ctx, conn, "look for changes of the table", fmt.Sprintf(`SELECT c.oid || coalesce((SELECT string_agg(E'\n' || a.attname || ' ' || a.atttypid, '' ORDER BY a.attnum)
 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '') AS shape FROM pg_class c WHERE c.oid = %s::regclass`, pgname.QuoteLiteral(r.facts.SQL())))
	if err != nil {
		return err
	}
	shape := fmt.Sprint(r.facts.OID)
	for i := range r.facts.Relation.Columns {
		c := &r.facts.Relation.Columns[i]
		shape += fmt.Sprintf("\n%s %d", c.Name, c.TypeOID)
	}
	if found.Shape != shape {
		return fault.Retry(fmt.Errorf("table %s was replaced or altered: the session begins anew", r.facts.Table))
	}
	return nil
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
	if err := r.unchanged(ctx, conn); err != nil {
		return nil, false, err
	}
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
