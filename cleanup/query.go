package cleanup

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// exec runs statements one by one, so each is its own transaction unless they begin one.
func (c *Cleaner) exec(ctx context.Context, step string, sql ...string) error {
	for _, s := range sql {
		if _, err := c.conn.Exec(ctx, s).ReadAll(); err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
	}
	return nil
}

// one returns the values of the one row that a statement with parameters gives.
func (c *Cleaner) one(ctx context.Context, step, sql string, args [][]byte) ([][]byte, error) {
	res := c.conn.ExecParams(ctx, sql, args, nil, nil, nil).Read()
	if res.Err != nil {
		return nil, fmt.Errorf("%s: %w", step, res.Err)
	}
	return res.Rows[0], nil
}

// mark reads the snapshot first and the position second, so that the transactions that had ended in
// the snapshot end before the position.
func (c *Cleaner) mark(ctx context.Context) (mark, error) {
	snapshot, err := pg.Row[struct{ XMin uint64 }](ctx, c.conn, "read the snapshot", "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8 AS xmin")
	if err != nil {
		return mark{}, err
	}
	end, err := pg.Row[struct{ At cdc.LSN }](ctx, c.conn, "read the end of the WAL", "SELECT pg_current_wal_insert_lsn() AS at")
	return mark{xmin: snapshot.XMin, position: end.At}, err
}

// slot is the confirmed position of the slot on this server. The error is errWaits if no process
// reads the slot, because the relay may read from another server.
func (c *Cleaner) slot(ctx context.Context) (cdc.LSN, error) {
	found, err := pg.Rows[struct{ At cdc.LSN }](ctx, c.conn, "read the slot", `SELECT confirmed_flush_lsn AS at FROM pg_replication_slots
 WHERE slot_name = `+pgname.QuoteLiteral(c.cfg.Slot)+` AND active AND confirmed_flush_lsn IS NOT NULL AND NOT pg_is_in_recovery()`)
	switch {
	case err != nil:
		return 0, err
	case len(found) == 0:
		return 0, errWaits
	}
	return found[0].At, nil
}

// interval is a duration as Postgres reads it.
func interval(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', 6, 64) + " seconds"
}

// Why a row version that is checked again cannot mislead the cleanup: the cleanup deletes rows whose transaction
// is below an id that is known to be delivered. After the cleanup's statement has taken its snapshot, and before
// it locks a row, another transaction can update the row. Postgres then checks the condition again with the new
// version, whose transaction id can be above the snapshot's xmax. Transaction ids are compared within one round
// of 2^32, so this id can look older than it is, and the row is deleted.
//
// Nothing is lost by that. Postgres checks a new version only if the old version met the condition in the
// snapshot. So the row was there, visible and delivered before the update. The event is the insert. A later
// UPDATE or DELETE of the row changes nothing in the WAL that the slot holds, so an update that is published
// (source.publish: insert, update) is delivered from the WAL even if the row is gone.

// delivered is a condition on the rows of t: their transaction is below the full transaction id. A
// row that was frozen long ago can look newer than it is (pg.FullXID), and then stays. It never
// looks older. Ids below 3 are those of rows that existed when the cluster was created or upgraded.
func delivered(below string) string {
	return "(t.xmin::text::int8 < 3 OR " + pg.FullXID("r.next", "t") + " < " + below + "::int8)"
}

// next is the relation r of delivered: the id that comes next in the statement's snapshot.
const next = `(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 AS next)`

// keeps returns a condition on the rows of t: the row stays although it is old, because its event is
// dead or parked. Events of all tables count, because an id of another table only keeps too much.
func (c *Cleaner) keeps(t *pg.TableFacts) (string, error) {
	if len(c.kept) == 0 {
		return "false", nil
	}
	id := c.cfg.IDColumn(t.Relation)
	if id == "" {
		return "", errors.New("the table has no column with the event id, so walpost cannot find the rows of dead and parked events")
	}
	if c.cfg.Mode != DropPartitions {
		c.note("the rows of dead and parked events stay until a person retries or drops the events (walpost dead list)")
	}
	// A cast to text isn't what the server sends: it takes the padding off a char(n), for example.
	return fmt.Sprintf("format('%%s', t.%s) = ANY (%s::text[])", pgname.QuoteIdent(id), array(c.kept)), nil
}

// array is the literal of an array, for SQL that adds the type.
func array(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
	}
	return pgname.QuoteLiteral("{" + strings.Join(quoted, ",") + "}")
}

// givesWay reports whether err means that others use the table, or that it took too long this time.
// There is another pass.
func givesWay(err error) bool {
	switch pg.SQLState(err) {
	case "55P03", pg.StateCancelled, "40001", "40P01": // a lock, a timeout, a serialization failure, a deadlock
		return true
	}
	return false
}
