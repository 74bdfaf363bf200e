package cleanup

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/pg"
)

// rows runs one statement with text parameters. A NULL is a nil string.
func (c *Cleaner) rows(ctx context.Context, step, sql string, args ...string) ([][]*string, error) {
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	res := c.conn.ExecParams(ctx, sql, params, nil, nil, nil).Read()
	if res.Err != nil {
		return nil, fmt.Errorf("%s: %w", step, res.Err)
	}
	out := make([][]*string, len(res.Rows))
	for i, row := range res.Rows {
		out[i] = make([]*string, len(row))
		for j, v := range row {
			if v != nil {
				s := string(v)
				out[i][j] = &s
			}
		}
	}
	return out, nil
}

// exec runs statements that give nothing. They run outside of a transaction block of ours.
func (c *Cleaner) exec(ctx context.Context, step string, sql ...string) error {
	for _, s := range sql {
		if _, err := c.rows(ctx, step, s); err != nil {
			return err
		}
	}
	return nil
}

// mark reads the snapshot first and the position second: what had ended in the snapshot has its end before the position.
func (c *Cleaner) mark(ctx context.Context) (mark, error) {
	snap, err := c.rows(ctx, "read the snapshot", "SELECT pg_snapshot_xmin(pg_current_snapshot())::text")
	if err != nil {
		return mark{}, err
	}
	pos, err := c.rows(ctx, "read the end of the WAL", "SELECT pg_current_wal_insert_lsn()::text")
	if err != nil {
		return mark{}, err
	}
	var m mark
	if m.xmin, err = strconv.ParseUint(text(snap), 10, 64); err != nil {
		return mark{}, fmt.Errorf("read the snapshot: %w", err)
	}
	if m.position, err = cdc.ParsePosition(text(pos)); err != nil {
		return mark{}, fmt.Errorf("read the end of the WAL: %w", err)
	}
	return m, nil
}

// slot is what this server says the slot has confirmed. A slot that nobody reads here is errWaits: this may be another server than
// the one that the relay reads from.
func (c *Cleaner) slot(ctx context.Context) (cdc.Position, error) {
	found, err := c.rows(ctx, "read the slot",
		"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1 AND active AND confirmed_flush_lsn IS NOT NULL AND NOT pg_is_in_recovery()", c.cfg.Slot)
	if err != nil {
		return 0, err
	}
	if len(found) == 0 {
		return 0, errWaits
	}
	return cdc.ParsePosition(text(found))
}

// text is the first value of the first row.
func text(rows [][]*string) string {
	if len(rows) == 0 || len(rows[0]) == 0 || rows[0][0] == nil {
		return ""
	}
	return *rows[0][0]
}

// interval is a duration as Postgres reads it.
func interval(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', 6, 64) + " seconds"
}

// delivered is a condition on the rows of t: their transaction is below the full transaction id. A row that was frozen long ago
// can look newer than it is (pg.FullXID), and then stays. It never looks older. Ids below 3 are those of rows that were there
// when the cluster was made or upgraded.
func delivered(below string) string {
	return "(t.xmin::text::int8 < 3 OR " + pg.FullXID("r.next") + " < " + below + "::int8)"
}

// next is the relation r of delivered: the id that comes next in the statement's snapshot.
const next = `(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 AS next)`

// isState says whether err has one of the SQLSTATEs.
func isState(err error, states ...string) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	for _, s := range states {
		if pgErr.Code == s {
			return true
		}
	}
	return false
}

// givesWay says whether err means that others use the table, or that it took too long this time: there is another pass.
func givesWay(err error) bool { return isState(err, "55P03", "57014", "40001", "40P01") }
