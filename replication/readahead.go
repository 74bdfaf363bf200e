package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

const (
	stateNoFunction   = "42883"
	stateNotSupported = "0A000"
)

// aheadQuiet is how long a reading ahead waits for an event where keepalives are not to be trusted. There, an event is to be written every minute
// (docs/cloud-postgres.md).
const aheadQuiet = 2 * time.Minute

// ErrNoReadAhead says that nobody can tell what the stream will give: this server does not let the role copy the slot, or the stream itself
// cannot be read, because the publication did not exist at a position that the slot still has to read. Or keepalives, which tell that an idle
// stream has come far enough, are not to be trusted, and no event tells it.
var ErrNoReadAhead = errors.New("the slot cannot be read ahead")

// ReadAhead hands every row that the slot's stream from from on will give as an insert, of a transaction that is wholly before upTo, to each.
// A row is valid until each returns. The slot stays where it is, and may be in use: what is read is a copy of it. The copy is temporary: it ends with
// this call, or with the process.
func (s *Source) ReadAhead(ctx context.Context, from, upTo cdc.LSN, each func(row *cdc.Row) error) error {
	if !reached(upTo, from) { // rows of before the stream may be missing in that reading
		return fault.Retry(fmt.Errorf("the server that the table was read from is only at %s, but the stream begins at %s: two connections to source.dsn reached different servers", upTo, from))
	}
	session, at, err := s.openAhead(ctx)
	if err != nil {
		return fmt.Errorf("read ahead of slot %s: %w", s.cfg.Slot, err)
	}
	defer func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = session.Close(limited) // a connection that ends later frees the copy later
	}()
	if at = max(at, from); reached(at, upTo) {
		return nil
	}
	if err := session.Start(ctx, at.Position()); err != nil {
		return fmt.Errorf("read ahead of slot %s: %w", s.cfg.Slot, err)
	}
	for since := time.Now(); ; {
		ev, err := session.Next(ctx, time.Second)
		switch {
		case fault.NeedsPerson(err): // the stream meets the same fault, and says what to do about the slot itself
			return fmt.Errorf("%w: %w", ErrNoReadAhead, err)
		case err != nil:
			return fmt.Errorf("read ahead of slot %s: %w", s.cfg.Slot, err)
		}
		if ev.Kind != cdc.Idle {
			since = time.Now()
		} else if !s.cfg.ConfirmKeepalives && time.Since(since) > aheadQuiet {
			return fmt.Errorf("%w: no event came for %s, and source.confirm_keepalives is false", ErrNoReadAhead, aheadQuiet)
		}
		switch ev.Kind {
		case cdc.Insert:
			if err := each(&ev.Row); err != nil {
				return err
			}
		case cdc.Commit, cdc.Idle:
			if reached(ev.Pos.LSN(), upTo) {
				return nil
			}
		case cdc.Begin, cdc.Update, cdc.Delete, cdc.Message:
		}
	}
}

// reached reports whether at is upTo, or beyond. Where the next record will begin a new page of WAL, the server names the place behind the
// page's header (24 or 40 bytes) as the end of what is written, and the place before the header as the end of what is sent.
func reached(at, upTo cdc.LSN) bool {
	const page, header = 8192, 40
	return at >= upTo || at%page == 0 && at > 0 && upTo-at <= header
}

// openAhead opens a session on a temporary copy of the slot, which streams from at.
func (s *Source) openAhead(ctx context.Context) (session *Session, at cdc.LSN, err error) {
	var f *pg.Facts
	if err := s.beside(ctx, func(sql *pgconn.PgConn) error {
		f, err = s.cfg.Names().Describe(ctx, sql)
		return err
	}); err != nil {
		return nil, 0, err
	}
	conn, err := s.connectBeside(ctx, f)
	if err != nil {
		return nil, 0, err
	}
	name := fmt.Sprintf("walpost_ahead_%d", conn.PID())
	made, err := pg.Row[struct{ LSN cdc.LSN }](ctx, conn, "copy the slot",
		"SELECT lsn FROM pg_copy_logical_replication_slot("+pgname.QuoteLiteral(s.cfg.Slot)+", "+pgname.QuoteLiteral(name)+", true)")
	if err != nil {
		pg.Close(conn)
		switch pg.SQLState(err) {
		case pg.StateLimitReached:
			return nil, 0, fault.Retry(fault.WithHint(err, "Raise max_replication_slots and restart Postgres, or drop a slot that nobody uses: "+
				"a second slot is needed while an interrupted reading of the table begins again."))
		case pg.StateNoRight, stateNoFunction, stateNotSupported:
			return nil, 0, fmt.Errorf("%w: %w", ErrNoReadAhead, err)
		case pg.StateUndefinedObject, pg.StateNotInState: // opening anew judges what became of the slot
			return nil, 0, fault.Retry(err)
		}
		return nil, 0, err
	}
	return newSession(conn, nil, sessionConfig{
		slot: name, publication: s.cfg.Publication, role: f.Server.Role, walSenderTimeout: pg.Millis(f.Server.SenderTimeout), confirmKeepalives: s.cfg.ConfirmKeepalives,
		logger: slog.New(slog.DiscardHandler), identity: cdc.Identity{SlotFound: cdc.SlotState{Exists: true, Confirmed: made.LSN.Position()}}, roots: f.Roots(),
	}), made.LSN, nil
}
