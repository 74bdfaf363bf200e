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

// inUseRetry spaces out the tries to take a slot in use. The server logs each of them as an error.
var inUseRetry = backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}

// inUseEvery is how often the log says that we are still waiting.
const inUseEvery = 30 * time.Second

// takeSlot starts replication, waiting while another process holds the slot.
func (s *Session) takeSlot(ctx context.Context, at cdc.LSN) error {
	began := time.Now()
	var logged time.Time
	for tries := 1; ; tries++ {
		refused, err := s.tryStart(ctx, at)
		if err != nil {
			return fmt.Errorf("start replication of slot %s from %s: %w", s.cfg.slot, at, err)
		}
		if refused == nil {
			if !logged.IsZero() {
				s.cfg.logger.Info("slot is free, and walpost has taken it", "slot", s.cfg.slot, "waited", time.Since(began).Round(time.Millisecond))
			}
			return nil
		}
		if refused.Code != pg.StateInUse {
			return s.startFault(refused)
		}
		if logged.IsZero() || time.Since(logged) >= inUseEvery {
			logged = time.Now()
			s.cfg.logger.Warn("slot is in use; waiting for it", "slot", s.cfg.slot, "pid", s.holder(ctx), "err", refused.Message)
		}
		if !wait.For(ctx, inUseRetry.Pause(tries)) {
			return fault.Retry(fmt.Errorf("wait for slot %s: %w: %w", s.cfg.slot, refused, context.Cause(ctx)))
		}
	}
}

// holder is the pid of the process that holds the slot, 0 where that cannot be told.
func (s *Session) holder(ctx context.Context) int32 {
	if s.cfg.recheck == nil {
		return 0
	}
	identity, err := s.cfg.recheck(ctx)
	if err != nil {
		return 0 // the server's own message goes to the log beside it
	}
	return identity.SlotFound.ActivePID
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
