package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/backoff"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/wait"
)

// inUseRetry spaces out the tries to take a slot in use if nobody can be asked whether it is free.
var inUseRetry = backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}

const (
	// inUseEvery is how often the log says that we are still waiting.
	inUseEvery = 30 * time.Second
	// tryEvery is how often a slot is tried that the catalog shows as in use. The server logs each try as an error.
	tryEvery = 30 * time.Second
	// freedPause is the time that a walsender that was told to end has for that, before the next look.
	freedPause = 50 * time.Millisecond
)

// takeSlot starts replication, waiting while another process holds the slot.
func (s *Session) takeSlot(ctx context.Context, at cdc.LSN) error {
	began := time.Now()
	w := waiting{Session: s, vigil: vigil{id: s.patience().id, every: s.cfg.watch.every, needed: s.patience().looks(began)}}
	for tries := 1; ; tries++ {
		refused, err := s.tryStart(ctx, at)
		if err != nil {
			return fmt.Errorf("start replication of slot %s from %s: %w", s.cfg.slot, at, err)
		}
		if refused == nil {
			if !w.logged.IsZero() {
				s.cfg.logger.Info("slot is free, and walpost has taken it", "slot", s.cfg.slot, "waited", time.Since(began).Round(time.Millisecond))
			}
			return nil
		}
		// If the slot was free a moment ago, the next Open finds who was faster, and tells whom this process waits for.
		if refused.Code != pg.StateInUse || s.identity.SlotFound.ActivePID == 0 {
			return s.startFault(refused)
		}
		if !w.free(ctx, tries, refused) {
			return fault.Retry(fmt.Errorf("wait for slot %s: %w: %w", s.cfg.slot, refused, context.Cause(ctx)))
		}
	}
}

// waiting is one wait for a slot that another process has.
type waiting struct {
	*Session
	vigil  vigil
	logged time.Time // when the log said so last
	unable bool      // the holder cannot be ended, and the log says so
}

// free waits until the slot may be free. It returns false if ctx has ended.
func (w *waiting) free(ctx context.Context, tries int, refused *pgconn.PgError) bool {
	if w.cfg.watch.look == nil {
		w.waits(&holder{}, refused.Message)
		return wait.For(ctx, inUseRetry.Pause(tries))
	}
	began := time.Now()
	for looks := 1; looks == 1 || time.Since(began) < tryEvery; looks++ {
		h, err := w.cfg.watch.look(ctx)
		switch {
		case err != nil, h.PID == 0 && looks == 1: // the catalog is of no help
			w.waits(&h, refused.Message)
			return wait.For(ctx, inUseRetry.Pause(tries))
		case h.PID == 0:
			return ctx.Err() == nil
		}
		w.waits(&h, refused.Message)
		pause := w.cfg.watch.every
		if w.vigil.saw(h, time.Now()) && w.ends(ctx, &h) {
			pause = freedPause
		}
		if !wait.For(ctx, pause) {
			return false
		}
	}
	return true
}

// waits logs now and then for whom we wait.
func (w *waiting) waits(h *holder, why string) {
	if w.logged.IsZero() || time.Since(w.logged) >= inUseEvery {
		w.logged = time.Now()
		attrs := []any{"slot", w.cfg.slot, "pid", h.PID, "client", h.Client, "err", why}
		if _, promises := h.promises(); promises && !h.Permitted {
			attrs = append(attrs, "hint", "If that client dies without a word, walpost takes over when wal_sender_timeout has passed. "+
				"To take over within seconds, run GRANT pg_monitor TO "+pgname.QuoteIdent(w.cfg.role)+";")
		}
		w.cfg.logger.Warn("slot is in use; waiting for it", attrs...)
	}
}

// ends ends the walsender of a client that is gone.
func (w *waiting) ends(ctx context.Context, h *holder) bool {
	ended, err := w.cfg.watch.end(ctx, h)
	id, _ := h.promises()
	switch own := id == w.vigil.id; {
	case err != nil && !w.unable:
		w.unable = true
		w.cfg.logger.Warn("the process that has the slot is silent, but walpost cannot end it: waiting for wal_sender_timeout",
			"slot", w.cfg.slot, "pid", h.PID, "client", h.Client, "err", err)
	case ended && own:
		w.cfg.logger.Info("ended the server process of this relay's former session", "slot", w.cfg.slot, "pid", h.PID)
	case ended:
		w.patience().spent(time.Now())
		w.vigil.needed = w.patience().looks(time.Now())
		w.cfg.logger.Warn("ended the server process that had the slot, because its client has been silent", "slot", w.cfg.slot, "pid", h.PID, "client", h.Client)
	}
	w.vigil.looks = 0
	return ended
}

// patience is the source's, or one of this session alone.
func (s *Session) patience() *patience {
	if s.cfg.patience == nil {
		s.cfg.patience = newPatience()
	}
	return s.cfg.patience
}

// promise names the stream so that others know how often its client reports.
func (s *Session) promise(ctx context.Context) error {
	name := promising(s.conn.ParameterStatus("application_name"), s.patience().id)
	if _, err := s.conn.Exec(ctx, "SET application_name = "+pgname.QuoteLiteral(name)).ReadAll(); err != nil {
		return pg.Classify(fmt.Errorf("name the stream of slot %s: %w", s.cfg.slot, err))
	}
	return nil
}

// startCommand is START_REPLICATION for our slot. Streaming, binary and two_phase stay off: transactions arrive whole, as
// text, in commit order.
func (s *Session) startCommand(at cdc.LSN) string {
	options := "proto_version '1', publication_names " + quoteText(pgname.QuoteIdent(s.cfg.publication))
	if s.cfg.messages.Relations != nil {
		options += ", messages 'true'"
	}
	return fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL %s (%s)", pgname.QuoteIdent(s.cfg.slot), at, options)
}

// tryStart sends START_REPLICATION and waits for the answer. A refusal leaves the connection ready for another try.
//
// pglogrepl.StartReplication does not fit: it reads by pgconn, whose buffer may take the first bytes of the stream together
// with the answer, and does not give them back to the wire.
func (s *Session) tryStart(ctx context.Context, at cdc.LSN) (refused *pgconn.PgError, err error) {
	start, err := (&pgproto3.Query{String: s.startCommand(at)}).Encode(nil)
	if err == nil {
		err = s.wire.write(start, s.writeDeadline(ctx))
	}
	if err != nil {
		return nil, fault.Retry(err)
	}
	for {
		kind, body, ok, err := s.wire.take()
		if err != nil {
			return nil, err
		}
		if !ok {
			// The server answers at once or not at all: it reads the WAL only after the answer.
			err := s.wire.fill(ctx, time.Now(), time.Now().Add(answerWithin))
			switch {
			case err == nil:
				continue
			case interrupted(ctx, err):
				return nil, err
			case errors.Is(err, errQuiet):
				err = fmt.Errorf("no answer within %s", answerWithin)
			case refused != nil:
				return refused, nil // a fatal refusal: the server closed the connection behind it
			}
			return nil, fault.Retry(err)
		}
		switch kind {
		case 'W':
			return nil, nil
		case 'E':
			refused = refusal(body)
		case 'N', 'S':
		case 'Z':
			if refused != nil {
				return refused, nil
			}
			return nil, errors.New("the server did not start to stream")
		default:
			return nil, fmt.Errorf("unexpected message %q", kind)
		}
	}
}

const answerWithin = 60 * time.Second
