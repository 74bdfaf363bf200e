package poll

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/pg"
)

// Status is what the newest look at the table found.
type Status struct {
	At       time.Time    // of the newest look; zero before the first
	Looks    uint64       // since the start of the process
	Position cdc.Position // all rows of transactions below it are read
	XMin     cdc.Position // all transactions below it have ended
	// Delayed is since when rows are visible that cannot be delivered, because a transaction with a
	// lower id has not ended. It is zero if there are none. Blocker is that transaction, if it is
	// known.
	Delayed time.Time
	Blocker *Blocker

	// Table, Strategy and Interval are those of the configuration.
	Table    string
	Strategy string
	Interval time.Duration
	// Backlog is the newest one that Watch read, nil if it could not be read, or if this process does not
	// deliver. BacklogErr is why it could not be read.
	Backlog    *Backlog
	BacklogErr string
}

// A Blocker is a transaction that delays delivery, because it has not ended.
type Blocker struct {
	XID         cdc.Position
	PID         int32 // 0 for a prepared transaction
	Application string
	Database    string
	State       string
	Since       time.Time // when the transaction began; zero if that is not known
	Prepared    string    // the name of a prepared transaction
}

// String names the transaction for people.
func (b *Blocker) String() string {
	if b.Prepared != "" {
		return fmt.Sprintf("prepared transaction %q of database %s (id %d)", b.Prepared, b.Database, uint64(b.XID))
	}
	text := fmt.Sprintf("transaction %d of server process %d", uint64(b.XID), b.PID)
	for _, more := range []struct{ what, is string }{{"application", b.Application}, {"database", b.Database}, {"state", b.State}} {
		if more.is != "" {
			text += ", " + more.what + " " + more.is
		}
	}
	return text
}

// End is the SQL that ends the transaction.
func (b *Blocker) End() string {
	switch {
	case b.Prepared != "":
		return "ROLLBACK PREPARED " + pg.QuoteLiteral(b.Prepared) + ";"
	case b.PID != 0:
		return fmt.Sprintf("SELECT pg_terminate_backend(%d);", b.PID)
	}
	return ""
}

// Status returns what the newest look found. Any goroutine may call it.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Table, st.Strategy, st.Interval = s.set.Table.String(), s.set.Strategy, s.set.Interval
	return st
}

// looked counts a look. delayed says that it found rows and that none can be delivered.
func (s *Source) looked(pos, xmin cdc.Position, delayed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.status
	st.At, st.Position, st.XMin = time.Now(), pos, xmin
	st.Looks++
	switch {
	case !delayed:
		st.Delayed, st.Blocker = time.Time{}, nil
	case st.Delayed.IsZero():
		st.Delayed = st.At
	}
}

const (
	blockerAfter = time.Second // of a delay, before the transaction is looked for
	blockerEvery = 5 * time.Second
	blockerLog   = 10 * time.Second // of a delay, before the log names the transaction
	blockerAgain = 5 * time.Minute
)

// delayed finds the transaction that delays delivery, and logs it now and then.
func (s *cursor) delayed(ctx context.Context, xmin cdc.Position) error {
	since, now := s.src.Status().Delayed, time.Now()
	if since.IsZero() || now.Sub(since) < blockerAfter || now.Before(s.name) {
		return nil
	}
	s.name = now.Add(blockerEvery)
	b, err := s.blocker(ctx, xmin)
	if err != nil || b == nil {
		return err
	}
	s.src.mu.Lock()
	s.src.status.Blocker = b
	s.src.mu.Unlock()
	if now.Sub(since) >= blockerLog && !now.Before(s.tell) {
		s.tell, s.told = now.Add(blockerAgain), true
		s.src.set.Logger.Warn().Str("table", s.src.set.Table.String()).Dur("for", now.Sub(since).Round(time.Second)).Str("transaction", b.String()).
			Msg("rows wait, because a transaction with a lower id has not ended")
	}
	return nil
}

// undelayed logs the end of a delay that was logged.
func (s *cursor) undelayed() {
	if s.told {
		s.told, s.tell = false, time.Time{}
		s.src.set.Logger.Info().Str("table", s.src.set.Table.String()).Msg("rows no longer wait for a transaction")
	}
}

// blocker describes the transaction with an id, nil if it has ended. Without the rights of pg_monitor, the server does not say
// since when the transactions of other roles are open.
func (s *Session) blocker(ctx context.Context, xid cdc.Position) (*Blocker, error) {
	found, err := pg.Rows[struct {
		PID         int32
		Application string
		Database    string
		State       string
		Since       *time.Time
		Prepared    string
	}](ctx, s.conn, "find the transaction that delays delivery", fmt.Sprintf(`SELECT coalesce(l.pid, 0) AS pid, coalesce(a.application_name, '') AS application,
 coalesce(a.datname, p.database, '') AS database, coalesce(a.state, '') AS state, coalesce(a.xact_start, p.prepared) AS since, coalesce(p.gid, '') AS prepared
 FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid LEFT JOIN pg_prepared_xacts p ON l.pid IS NULL AND p.transaction = l.transactionid
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.transactionid::text = '%d' LIMIT 1`, uint32(xid)))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	f := &found[0]
	b := &Blocker{XID: xid, PID: f.PID, Application: f.Application, Database: f.Database, State: f.State, Prepared: f.Prepared}
	if f.Since != nil {
		b.Since = *f.Since
	}
	return b, nil
}
