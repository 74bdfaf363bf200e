package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// refusal is the error of an ErrorResponse's body.
func refusal(body []byte) *pgconn.PgError {
	var m pgproto3.ErrorResponse
	if err := m.Decode(body); err != nil {
		return &pgconn.PgError{Severity: "ERROR", Message: "an error that could not be read"}
	}
	return pgconn.ErrorResponseToPgError(&m)
}

// streamFault gives a server's error while streaming its behaviour. Only what opening the session again can judge better,
// or what may pass, is retryable: a slot that was invalidated ends its stream with 57P01, like any kill, and only its
// wal_status tells, so that judgement is the reopening's.
func (s *Session) streamFault(e *pgconn.PgError) error {
	err := fmt.Errorf("stream of slot %s: %w", s.cfg.slot, e)
	switch {
	case e.Code == pg.StateUndefinedObject:
		return fault.Person(
			fmt.Errorf("slot %s needs the publication %s as of %s, but the publication did not exist then: %w", s.cfg.slot, s.cfg.publication, s.received, e),
			"The publication was dropped, or created after the slot. Creating it again does not help, because the slot reads an old state of the catalog. "+
				"Events from "+s.flush.String()+" on may be missing. "+recoverWithout(s.cfg.slot, s.cfg.role, s.cfg.identity.Tableless), fault.RecoverCommands(s.cfg.identity.Tableless)...)
	case e.Code == pg.StateNoRight:
		return fault.Person(err, "The role needs the REPLICATION attribute: ALTER ROLE … WITH REPLICATION (on managed servers: grant the provider's replication role).")
	case pg.NotUTF8(e.Code):
		where := "after " + s.received.String()
		if s.dec != nil && s.dec.InTx {
			where = "in transaction " + s.dec.CommitLSN.String()
		}
		return fault.Person(fmt.Errorf("stream of slot %s: a row %s has a text value that is not UTF-8: %w", s.cfg.slot, where, e),
			pg.RepairText+" The WAL keeps the old value, so the slot cannot read it. "+recoverWithout(s.cfg.slot, "", false), fault.Advice{Command: fault.Command("recover")})
	case strings.HasPrefix(e.Code, "55"), pg.RetryableState(e.Code): // 55: not in the state for it, which opening again judges
		return fault.Retry(err)
	}
	return err
}

// recoverGone is what to do where the slot is missing or lost. A slot that is made by hand would begin behind the gap.
func recoverGone(tableless bool) string {
	if tableless {
		return fault.Recover(true)
	}
	return fault.Recover(false) +
		" To give these events up instead, use walpost run --accept-gap=<token> with the token that the next walpost run prints."
}

// recoverWithout is what to do where the slot is there and cannot give what is missing. maker is "", or the role that makes
// the publication in recover if it may: a role that setup made may not.
func recoverWithout(slot, maker string, tableless bool) string {
	if maker != "" {
		maker = " If role " + pgname.QuoteIdent(maker) + " may not create the publication, run this as an administrator: " + fault.SetupCommand(maker) + " ."
	}
	drop := "Drop the slot: SELECT pg_drop_replication_slot(" + pgname.QuoteLiteral(slot) + ");" + maker
	if tableless {
		return drop + " " + fault.Recover(true)
	}
	return drop + " Then run " + fault.Command("recover") +
		" to create the slot and, if it is missing, the publication, and to publish the missing events from the table."
}

// startFault gives an error of START_REPLICATION its behaviour. An undefined object is the slot here, so that opening
// again finds it missing and judges.
func (s *Session) startFault(e *pgconn.PgError) error {
	if e.Code == pg.StateUndefinedObject {
		return fault.Retry(fmt.Errorf("start replication of slot %s: %w", s.cfg.slot, e))
	}
	return s.streamFault(e)
}

// notice judges a NoticeResponse within the stream. Postgres 18 and newer do not fail where the publication did not exist
// as of the WAL being read, but warn and skip its rows.
func (s *Session) notice(body []byte) error {
	var m pgproto3.NoticeResponse
	if err := m.Decode(body); err != nil {
		return fmt.Errorf("malformed notice: %w", err)
	}
	severity := cmp.Or(m.SeverityUnlocalized, m.Severity)
	if m.Code != pg.StateNotInState || severity != "WARNING" {
		s.cfg.logger.Info("notice in the stream", "slot", s.cfg.slot, "severity", severity, "sqlstate", m.Code, "notice", m.Message)
		return nil
	}
	return fault.Person(
		fmt.Errorf("the server skips rows of slot %s from %s on: %s (SQLSTATE %s) %s", s.cfg.slot, s.received, m.Message, m.Code, m.Detail),
		"The publication "+s.cfg.publication+" was dropped, or created after the slot. Events from "+s.flush.String()+
			" on may be missing. "+recoverWithout(s.cfg.slot, s.cfg.role, s.cfg.identity.Tableless), fault.RecoverCommands(s.cfg.identity.Tableless)...)
}

// goingDown says whether err, of a connection attempt, says that the server is not there or is about to leave.
func goingDown(err error) bool {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	// A unix socket's file disappears with the server.
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" && errors.Is(dial, syscall.ENOENT) {
		return true
	}
	switch pg.SQLState(err) {
	case pg.StateAdminShutdown, pg.StateCannotConnectNow:
		return true
	}
	return false
}

// lost is an error of the connection itself.
func lost(slot string, err error) error {
	return fault.Retry(fmt.Errorf("stream of slot %s: connection lost: %w", slot, err))
}

// interrupted says whether err is only that the caller's context ended.
func interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
}

// quoteText quotes an SQL string literal, as the replication grammar knows it (no escapes but doubling).
func quoteText(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }
