package table

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// An Order is how rows of a table are sorted. If one transaction wrote two rows, and the order does not tell them apart, the row
// that was written first comes first (by command, then by place).
type Order struct {
	By     orderBy
	Column string // for ByColumn and BySize
}

// AsWritten is the order in which the rows were written: by a column, which usually has an index, or without one ("") by
// transaction, for which the server looks at every row.
func AsWritten(column string) Order {
	if column == "" {
		return Order{By: ByTransaction}
	}
	return Order{By: ByColumn, Column: column}
}

// orderBy says what an Order goes by.
type orderBy uint8

// What rows can be ordered by.
const (
	// Unordered rows come as the table holds them.
	Unordered orderBy = iota
	// ByCommit is by the commit times that the server keeps; rows from before it kept them come first.
	ByCommit
	// ByColumn is by a column, such as an identity. That is the commit order only if the writers of one key wait for each other.
	ByColumn
	// ByTransaction is the order in which the transactions began to write, by the age of their ids.
	ByTransaction
	// BySize is by the stored size of a column's value, which may be compressed. The server fetches no value for it.
	BySize
)

// A Selection says which rows of a table are read, and in which order.
type Selection struct {
	Order  Order
	Newest int  // reads only so many rows, from the end of the order; 0 reads all
	All    bool // reads also the rows that the row filter leaves out

	// IDColumn is the column of Place.ID; "" for none.
	IDColumn string

	// Since leaves out the rows that are known to be committed before it: by the commit times that the server keeps, else by
	// TimeColumn. Zero leaves out nothing.
	Since      time.Time
	TimeColumn string
	// Until leaves out the rows that are known to be committed at it or later, as Since does. Zero leaves out nothing.
	Until time.Time
	// Behind leaves out the rows of transactions that it does not cover; nil leaves out nothing.
	Behind *Behind
	// FirstID and LastID leave out the rows whose value in IDColumn is below or above; nil leaves out nothing.
	FirstID, LastID *string
	// In leaves out the rows that one of them does not select.
	In []In

	// After leaves out the rows up to that Place, which an earlier reading in the same order has read. A row that was changed
	// since then is not left out. It is for ByCommit and ByColumn only. If Nth is 0, nothing is left out.
	After Place
}

// A Behind covers the transactions from the id From on, without those that the snapshot Border sees ("" for none). Column is the xid8
// column that has the ids of the rows, "" for their xmin. Without a column there is no border.
type Behind struct {
	Column string
	From   uint64
	Border string
}

// where is the condition for the rows that are not known to be of another transaction. next is above the id of every visible row.
func (b *Behind) where(next uint64) string {
	if b.Column == "" { // an xmin below 3 is older than any other
		return fmt.Sprintf("(t.xmin::text::int8 >= 3 AND %s >= %d)", pg.FullXID(strconv.FormatUint(next, 10), "t"), b.From)
	}
	xid := "t." + pgname.QuoteIdent(b.Column)
	condition := fmt.Sprintf("%s >= '%d'::xid8", xid, b.From)
	if b.Border != "" {
		condition += fmt.Sprintf(" AND NOT pg_visible_in_snapshot(%s, %s)", xid, pgname.QuoteLiteral(b.Border))
	}
	return "(" + condition + ") IS NOT FALSE"
}

// An In selects the rows whose Column has one of the Values.
type In struct {
	Column string
	Values []string
}

// Select reads the rows of sel. The caller must read the rows to their end, or close the reader.
func (t *Table) Select(ctx context.Context, sel Selection) (*Rows, error) {
	where, id, err := t.where(&sel)
	if err != nil {
		return nil, err
	}
	keys, key, err := t.sortKeys(sel.Order)
	if err != nil {
		return nil, err
	}
	where, skippable, skip, err := t.behind(ctx, &sel, where, id, keys)
	if err != nil {
		return nil, err
	}
	format := t.format(key, id, skippable, t.kept())
	sql := "SELECT " + format.List() + " FROM " + t.from() + " WHERE " + strings.Join(where, " AND ")
	if len(keys) > 0 {
		if sel.Newest > 0 {
			keys = slices.Clone(keys)
			for i, k := range keys {
				keys[i] = reverse(k)
			}
		}
		sql += " ORDER BY " + strings.Join(keys, ", ")
	}
	if sel.Newest > 0 {
		sql += fmt.Sprintf(" LIMIT %d", sel.Newest)
	}
	rows, err := t.query(ctx, "read table "+t.String(), sql, format, nil)
	if err == nil {
		rows.skip = skip
	}
	return rows, err
}

// Count counts the rows that Select gives for sel. It ignores Newest.
func (t *Table) Count(ctx context.Context, sel Selection) (int64, error) {
	where, id, err := t.where(&sel)
	if err != nil {
		return 0, err
	}
	keys, _, err := t.sortKeys(sel.Order)
	if err != nil {
		return 0, err
	}
	where, _, skip, err := t.behind(ctx, &sel, where, id, keys)
	if err != nil {
		return 0, err
	}
	n, err := pg.Row[struct{ Rows int64 }](ctx, t.reader.conn, "count the rows of "+t.String(), "SELECT count(*) AS rows FROM "+t.from()+" WHERE "+strings.Join(where, " AND "))
	return n.Rows - int64(skip), err
}

// where returns the conditions of sel but for After, and the expression of Place.ID.
func (t *Table) where(sel *Selection) (where []string, id string, err error) {
	where, id = []string{t.kept()}, "NULL"
	if sel.All {
		where[0] = "true"
	}
	if sel.IDColumn != "" {
		c, err := t.column(sel.IDColumn)
		if err != nil {
			return nil, "", err
		}
		id = c + "::text"
		if sel.FirstID != nil {
			where = append(where, c+" >= "+pgname.QuoteLiteral(*sel.FirstID))
		}
		if sel.LastID != nil {
			where = append(where, c+" <= "+pgname.QuoteLiteral(*sel.LastID))
		}
	}
	for _, in := range sel.In {
		c, err := t.column(in.Column)
		if err != nil {
			return nil, "", err
		}
		values := make([]string, len(in.Values))
		for i, v := range in.Values {
			values[i] = pgname.QuoteLiteral(v)
		}
		where = append(where, c+" IN ("+strings.Join(values, ", ")+")")
	}
	since, err := t.since(sel)
	if err != nil {
		return nil, "", err
	}
	if since != "" {
		where = append(where, since)
	}
	if sel.Behind != nil {
		where = append(where, sel.Behind.where(t.reader.xmax))
	}
	if !sel.Until.IsZero() {
		if err := t.TellsAge(sel.TimeColumn); err != nil {
			return nil, "", err
		}
		age, err := t.age(sel.TimeColumn)
		if err != nil {
			return nil, "", err
		}
		where = append(where, fmt.Sprintf("(%s < %s) IS NOT FALSE", age, timestamptz(sel.Until)))
	}
	return where, id, nil
}

// behind adds the condition of After. skip of the rows for which skippable is true are still to be left out.
func (t *Table) behind(ctx context.Context, sel *Selection, where []string, id string, keys []string) (with []string, skippable string, skip int, err error) {
	if sel.After.Nth == 0 {
		return where, "false", 0, nil
	}
	done, skippable, err := t.after(sel)
	if err != nil {
		return nil, "", 0, err
	}
	if skip, err = t.skip(ctx, append(slices.Clip(where), skippable), id, keys, sel.After); err != nil {
		return nil, "", 0, err
	}
	if sel.Order.By == ByCommit && sel.After.Key != "" && skip == 0 {
		// The server may have forgotten commit times since then, that of After's row too. A row without a commit time may
		// be behind After's row.
		done += " AND " + commitTimestamp + " IS NOT NULL"
	}
	return append(where, "("+done+") IS NOT TRUE"), skippable, skip, nil
}

func (t *Table) column(name string) (string, error) {
	if t.Relation.Index(name) < 0 {
		return "", fault.Config(fmt.Errorf("table %s has no published column %q", t, name),
			"Name a column that the table has and the publication publishes, or add the column to the column list of the publication.")
	}
	return "t." + pgname.QuoteIdent(name), nil
}

const commitTimestamp = "pg_xact_commit_timestamp(t.xmin)"

func timestamptz(at time.Time) string {
	return pgname.QuoteLiteral(at.UTC().Format("2006-01-02 15:04:05.999999")+"+00") + "::timestamptz"
}

// since returns the condition of Selection.Since, "" for none.
func (t *Table) since(sel *Selection) (string, error) {
	if sel.Since.IsZero() {
		return "", nil
	}
	at := timestamptz(sel.Since)
	age, err := t.age(sel.TimeColumn)
	switch {
	case err != nil || age == "":
		return "", err
	case t.reader.commits:
		// A row without a commit time was written before the server kept commit times. It can be younger than Since only if the
		// server kept none at Since.
		return fmt.Sprintf("(%[1]s >= %[2]s OR %[1]s IS NULL AND NOT EXISTS (SELECT FROM %[3]s WHERE %[1]s < %[2]s))", age, at, t.from()), nil
	}
	return fmt.Sprintf("(%[1]s >= %[2]s OR %[1]s IS NULL)", age, at), nil
}

// after returns the conditions of Selection.After: done for rows before its key, and same for rows with its key. Both select only
// rows that the earlier reading saw as they are now. That is asked of the transaction that wrote the row, because an update has
// another transaction.
func (t *Table) after(sel *Selection) (done, same string, err error) {
	// Ids below 3 are older than any.
	seen := fmt.Sprintf("(t.xmin::text::int8 < 3 OR pg_visible_in_snapshot(greatest(%s, 3)::text::xid8, %s::pg_snapshot))",
		pg.FullXID(strconv.FormatUint(t.reader.xmax, 10), "t"), pgname.QuoteLiteral(sel.After.Sees))
	var less, equal string
	switch sel.Order.By {
	case ByCommit:
		less, equal = "false", commitTimestamp+" IS NULL"
		if sel.After.Key != "" {
			n, err := strconv.ParseInt(sel.After.Key, 10, 64)
			if err != nil {
				return "", "", fmt.Errorf("key %q is not a commit time", sel.After.Key)
			}
			less = fmt.Sprintf("(%s IS NULL OR %s < %d)", commitTimestamp, pg.Micros(commitTimestamp), n)
			equal = fmt.Sprintf("%s = %d", pg.Micros(commitTimestamp), n)
		}
	case ByColumn:
		c, err := t.column(sel.Order.Column)
		if err != nil {
			return "", "", err
		}
		less, equal = c+" < "+pgname.QuoteLiteral(sel.After.Key), c+" = "+pgname.QuoteLiteral(sel.After.Key)
	default:
		return "", "", errors.New("an empty order has no position to continue after")
	}
	return seen + " AND " + less, "coalesce(" + seen + " AND " + equal + ", false)", nil
}

// skip returns how many rows of After's key are left out: all up to After's row if that row still has its place, else none.
func (t *Table) skip(ctx context.Context, same []string, id string, keys []string, after Place) (int, error) {
	at, err := pg.Rows[struct{ ID *string }](ctx, t.reader.conn, "find where the reading of "+t.String()+" was", fmt.Sprintf(
		"SELECT %s AS id FROM %s WHERE %s ORDER BY %s OFFSET %d LIMIT 1", id, t.from(), strings.Join(same, " AND "), strings.Join(keys, ", "), after.Nth-1))
	if err != nil {
		return 0, err
	}
	if len(at) == 1 && at[0].ID != nil && *at[0].ID == after.ID {
		return after.Nth, nil
	}
	return 0, nil
}

// sortKeys returns the terms of ORDER BY, and the expression that Selection.After compares.
func (t *Table) sortKeys(o Order) (keys []string, key string, err error) {
	written := []string{"t.cmin::text::bigint ASC", "t.ctid ASC"}
	if t.Partitioned() { // the ctids of two partitions cannot be compared
		written = []string{"t.cmin::text::bigint ASC", "t.tableoid ASC", "t.ctid ASC"}
	}
	switch o.By {
	case ByCommit:
		if !t.reader.commits {
			return nil, "", errors.New("the server keeps no commit times (track_commit_timestamp is off)")
		}
		keys = []string{commitTimestamp + " ASC NULLS FIRST"}
		if o.Column != "" {
			c, err := t.column(o.Column)
			if err != nil {
				return nil, "", err
			}
			keys = append(keys, c+" ASC")
		}
		return append(keys, written...), pg.Micros(commitTimestamp) + "::text", nil
	case ByColumn:
		c, err := t.column(o.Column)
		if err != nil {
			return nil, "", err
		}
		return append([]string{c + " ASC"}, written...), c + "::text", nil
	case ByTransaction:
		return append([]string{"age(t.xmin) DESC"}, written...), "NULL", nil
	case BySize:
		c, err := t.column(o.Column)
		if err != nil {
			return nil, "", err
		}
		return []string{"pg_column_size(" + c + ") ASC NULLS FIRST"}, "NULL", nil
	case Unordered:
	}
	return nil, "NULL", nil
}

// reverse returns a term of ORDER BY that sorts the other way.
func reverse(term string) string {
	term, nulls := strings.CutSuffix(term, " NULLS FIRST")
	if expr, ok := strings.CutSuffix(term, " ASC"); ok {
		term = expr + " DESC"
	} else {
		term = strings.TrimSuffix(term, " DESC") + " ASC"
	}
	if nulls {
		term += " NULLS LAST"
	}
	return term
}

// Unplaced describes, for people, the rows of sel that its order does not place; "" if it places every row. No commit time tells in
// which order one statement wrote its rows. That matters only for rows with the same value in the column key; key "" asks of all rows.
func (t *Table) Unplaced(ctx context.Context, sel Selection, key string) (string, error) {
	type check struct{ query, text string }
	var checks []check
	o := sel.Order
	where, _, err := t.where(&sel)
	if err != nil {
		return "", err
	}
	kept := strings.Join(where, " AND ")
	switch {
	case o.By == ByCommit && o.Column == "":
		group := "t.xmin::text, t.cmin::text"
		if key != "" {
			c, err := t.column(key)
			if err != nil {
				return "", err
			}
			group += ", " + c + "::text"
		}
		checks = []check{
			{"SELECT FROM " + t.from() + " WHERE " + kept + " AND " + commitTimestamp + " IS NULL", "rows from before the server kept commit times"},
			{"SELECT FROM " + t.from() + " WHERE " + kept + " GROUP BY " + group + " HAVING count(*) > 1", "rows of one key that were written by one statement (COPY, or an INSERT of several rows)"},
		}
	case o.By == ByCommit:
		return "", nil
	case o.By == ByColumn:
		c, err := t.column(o.Column)
		if err != nil {
			return "", err
		}
		checks = []check{{"SELECT FROM " + t.from() + " WHERE " + kept + " AND " + c + " IS NULL", "rows with a NULL in " + o.Column}}
	default:
		checks = []check{{"SELECT FROM " + t.from() + " WHERE " + kept, "rows"}}
	}
	for _, c := range checks {
		found, err := pg.Row[struct{ Found bool }](ctx, t.reader.conn, "look at the order of "+t.String(), "SELECT EXISTS ("+c.query+") AS found")
		if err != nil {
			return "", err
		}
		if found.Found {
			return c.text, nil
		}
	}
	return "", nil
}

// HasEqual reports whether two rows of the table are equal in all published columns.
func (t *Table) HasEqual(ctx context.Context) (bool, error) {
	found, err := pg.Row[struct{ Found bool }](ctx, t.reader.conn, "look for equal rows of "+t.String(), // as text, because json cannot be compared
		"SELECT EXISTS (SELECT FROM "+t.from()+" WHERE "+t.kept()+" GROUP BY ROW("+columns(t.Relation)+")::text HAVING count(*) > 1) AS found")
	return found.Found, err
}

// BadValue returns what the server says of a text that is no value of its column's type, or that violates a constraint of the
// table. It is nil if the server did not refuse a value.
func BadValue(err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && (strings.HasPrefix(e.Code, "22") || strings.HasPrefix(e.Code, "23")) {
		return errors.New(e.Message)
	}
	return nil
}
