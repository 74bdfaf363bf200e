package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
)

// An Order is how rows of a table are sorted. Of two rows that were written by one transaction, and that the order does not
// tell apart, the one that was written first comes first (by command, then by place).
type Order struct {
	By     OrderBy
	Column string // for ByColumn
}

// OrderBy says what an Order goes by.
type OrderBy uint8

// What rows can be ordered by.
const (
	// Unordered rows come as the table holds them.
	Unordered OrderBy = iota
	// ByCommit is by the commit times that the server keeps; rows from before it kept them come first.
	ByCommit
	// ByColumn is by a column, such as an identity: commit order only where writers of one key wait for each other.
	ByColumn
	// ByTransaction is by the age of the writing transaction's id: the order in which transactions began to write.
	ByTransaction
)

// A Selection is which rows of a table are read, and in which order.
type Selection struct {
	Table  Table
	Order  Order
	Newest int // only so many, from the end of the order; 0 is all

	// EventID, where Column is set, selects the rows with that value in that column.
	EventID struct{ Column, Value string }
}

// Select reads what sel says. The rows must be read to their end, or the reader closed.
func (r *TableReader) Select(ctx context.Context, sel Selection) (*Rows, error) {
	t := r.table(sel.Table)
	if t == nil {
		return nil, fmt.Errorf("table %s is not among source.tables", sel.Table)
	}
	var where []string
	if c := sel.EventID.Column; c != "" {
		if t.relation.Index(c) < 0 {
			return nil, noColumn(t, c)
		}
		where = append(where, "t."+quoteIdent(c)+" = "+quoteLiteral(sel.EventID.Value))
	}
	keys, key, err := r.sortKeys(t, sel.Order)
	if err != nil {
		return nil, err
	}
	sql := "SELECT " + t.columns() + ", " + r.commitTime() + ", " + key + " FROM " + t.from()
	if len(where) > 0 {
		sql += " WHERE " + strings.Join(where, " AND ")
	}
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
	return r.query(ctx, t, "read table "+t.String(), sql, nil)
}

// sortKeys are the terms of ORDER BY, and the expression of what After compares.
func (r *TableReader) sortKeys(t *readTable, o Order) (keys []string, key string, err error) {
	written := []string{"t.cmin::text::bigint ASC", "t.ctid ASC"}
	if t.partitioned { // places of two partitions say nothing about each other
		written = []string{"t.cmin::text::bigint ASC", "t.tableoid ASC", "t.ctid ASC"}
	}
	column := func() (string, error) {
		if t.relation.Index(o.Column) < 0 {
			return "", noColumn(t, o.Column)
		}
		return "t." + quoteIdent(o.Column), nil
	}
	switch o.By {
	case ByCommit:
		if !r.commits {
			return nil, "", errors.New("the server keeps no commit times (track_commit_timestamp is off)")
		}
		keys = []string{"pg_xact_commit_timestamp(t.xmin) ASC NULLS FIRST"}
		if o.Column != "" {
			c, err := column()
			if err != nil {
				return nil, "", err
			}
			keys = append(keys, c+" ASC")
		}
		return append(keys, written...), micros("pg_xact_commit_timestamp(t.xmin)") + "::text", nil
	case ByColumn:
		c, err := column()
		if err != nil {
			return nil, "", err
		}
		return append([]string{c + " ASC"}, written...), c + "::text", nil
	case ByTransaction:
		return append([]string{"age(t.xmin) DESC"}, written...), "NULL", nil
	case Unordered:
	}
	return nil, "NULL", nil
}

// reverse turns a term of ORDER BY around.
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

func noColumn(t *readTable, column string) error {
	return fault.Config(fmt.Errorf("table %s has no published column %q", t, column), "")
}

// A BadValueError says that a text is no value of a column's type, or no row of the table.
type BadValueError struct{ err *pgconn.PgError }

func (e *BadValueError) Error() string { return e.err.Message }

// Unwrap returns the server's error.
func (e *BadValueError) Unwrap() error { return e.err }

// BadValue returns the BadValueError in err's chain: the server's word that a text does not fit the column's type.
func BadValue(err error) *BadValueError {
	var e *pgconn.PgError
	if errors.As(err, &e) && (strings.HasPrefix(e.Code, "22") || strings.HasPrefix(e.Code, "23")) {
		return &BadValueError{e}
	}
	return nil
}
