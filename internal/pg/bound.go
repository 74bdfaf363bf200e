package pg

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
)

// A Bound says which rows a first start leaves out: those of the transactions below XID of the server
// System. A position of a checkpoint moves on, a Bound does not. So a Bound that stays in the
// configuration leaves out no row that was written later, also if the checkpoint is lost. On another
// server the id would mean other transactions.
type Bound struct {
	System string // system_identifier
	XID    uint64
}

const boundWord = "after "

// IsBound reports whether text, a value of source.snapshot, is meant to be a Bound.
func IsBound(text string) bool { return strings.HasPrefix(text, boundWord) }

// ParseBound reads what String prints.
func ParseBound(text string) (b Bound, err error) {
	system, xid, ok := strings.Cut(strings.TrimPrefix(text, boundWord), "/")
	if _, wrong := strconv.ParseUint(system, 10, 64); ok && IsBound(text) && wrong == nil {
		if b.XID, err = strconv.ParseUint(xid, 10, 64); err == nil && b.XID > 0 {
			b.System = system
			return b, nil
		}
	}
	return Bound{}, fmt.Errorf("%q is not a bound as walpost run prints it (after <system identifier>/<transaction id>)", text)
}

func (b Bound) String() string { return boundWord + b.System + "/" + strconv.FormatUint(b.XID, 10) }

// TakeBound returns the present Bound of a server: all transactions below it have ended. The server gives
// out an id again if it crashes before anything with that id is in its WAL on disk. So the Bound is not
// above an id that TakeBound has written there.
func TakeBound(ctx context.Context, conn *pgconn.PgConn, server *Server) (b Bound, err error) {
	own := "coalesce(pg_current_xact_id_if_assigned()::text, pg_snapshot_xmax(pg_current_snapshot())::text)"
	begin, end := "BEGIN", "COMMIT"
	if !server.Recovery {
		begin = "BEGIN; SET LOCAL synchronous_commit = local; SELECT pg_current_xact_id()"
		end = "SELECT pg_logical_emit_message(true, 'walpost.flush', ''); COMMIT"
	}
	if _, err := conn.Exec(ctx, begin).ReadAll(); err != nil {
		return b, Classify(fmt.Errorf("take a transaction id: %w", err))
	}
	type ids struct{ Own, XMin string }
	now, err := Row[ids](ctx, conn, "read the oldest transaction", "SELECT "+own+" AS own, pg_snapshot_xmin(pg_current_snapshot())::text AS xmin")
	if err != nil {
		return b, err
	}
	if _, err := conn.Exec(ctx, end).ReadAll(); err != nil {
		return b, Classify(fmt.Errorf("take a transaction id: %w", err))
	}
	b.System = server.SystemID
	for _, text := range []string{now.Own, now.XMin} {
		id, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return b, fmt.Errorf("take a transaction id: %w: %q", ErrAnswer, text)
		}
		if b.XID == 0 || id < b.XID {
			b.XID = id
		}
	}
	return b, nil
}

// Holds reports whether b is of the server, which must have given out all ids below it.
func (b Bound) Holds(ctx context.Context, conn *pgconn.PgConn, server *Server) (bool, error) {
	if b.System != server.SystemID {
		return false, nil
	}
	next, err := Row[struct{ XMax string }](ctx, conn, "read the next transaction id", "SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS xmax")
	if err != nil {
		return false, err
	}
	xmax, err := strconv.ParseUint(next.XMax, 10, 64)
	if err != nil {
		return false, fmt.Errorf("read the next transaction id: %w: %q", ErrAnswer, next.XMax)
	}
	return b.XID <= xmax, nil
}

// Refuse is the error of a start without a checkpoint over rows, which are described by has. given is
// source.snapshot.
func (b Bound) Refuse(has, given string) error {
	err := fmt.Errorf("source.snapshot must say what becomes of the rows that are there, because there is no checkpoint: %s", has)
	switch {
	case given == "never":
		err = fmt.Errorf("%w (never is for tables without rows, because it can't tell which rows it leaves out)", err)
	case IsBound(given):
		err = fmt.Errorf("%w (source.snapshot has a bound of another server, or of a later state of this one: %s)", err, given)
	}
	return fault.Config(err, fmt.Sprintf("If this relay is new, write one of these lines under source in walpost.yaml, or use --snapshot. It may stay there.\n"+
		"  snapshot: initial  # publishes the rows first\n"+
		"  snapshot: %s  # leaves out the rows that are there now, except those newer than an open transaction\n"+
		"If this relay ran before, its checkpoint is lost: write snapshot: initial, which publishes the rows again. A new bound would leave out what is not delivered.", b))
}
