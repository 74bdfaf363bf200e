package poll

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/internal/pg"
)

// Status is what is known of the polled table.
type Status struct {
	Looks uint64 // at the table, since the start of the process

	// Table, Database, Strategy and Interval are those of the configuration.
	Table    string
	Database string
	Strategy string
	Interval time.Duration
	// Backlog is the newest one that Watch read, nil if it could not be read, or if this process does not
	// deliver. BacklogErr is why it could not be read, and BacklogAt when it last could.
	Backlog    *Backlog
	BacklogErr string
	BacklogAt  time.Time // zero for never
}

// A Blocker is a transaction that delays delivery, because it has not ended.
type Blocker struct {
	XID         uint64    `json:"xid,string"`
	PID         int32     `json:"pid"` // 0 for a prepared transaction
	Application string    `json:"application"`
	Database    string    `json:"database"`
	State       string    `json:"state"`
	Since       age.Since `json:"age_seconds"` // when the transaction began; zero if that is not known
	Prepared    string    `json:"prepared"`    // the name of a prepared transaction
}

// String names the transaction for people.
func (b *Blocker) String() string {
	session := pg.Session{PID: b.PID, Application: b.Application, Database: b.Database, State: b.State}
	if b.Prepared != "" {
		return fmt.Sprintf("prepared transaction %s (id %d)%s", b.Prepared, b.XID, session)
	}
	return fmt.Sprintf("transaction %d%s", b.XID, session)
}

// End is the SQL that ends the transaction.
func (b *Blocker) End() string {
	if b.Prepared != "" {
		return pg.EndPreparedSQL(b.Prepared, b.Database)
	}
	return pg.EndSQL(b.PID)
}

// Status returns what is known now. Any goroutine may call it.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Table, st.Database, st.Strategy, st.Interval = s.set.Table.String(), s.set.Database, s.set.Strategy, s.set.Interval
	return st
}

// countLook counts a look.
func (s *Source) countLook() {
	s.mu.Lock()
	s.status.Looks++
	s.mu.Unlock()
}

// blocker describes the transaction with an id, nil if it has ended. Without the rights of pg_monitor, the server does not say
// since when the transactions of other roles are open.
func (s *Session) blocker(ctx context.Context, xid uint64) (*Blocker, error) {
	found, err := pg.Rows[Blocker](ctx, s.conn, "find the transaction that delays delivery", fmt.Sprintf(`SELECT coalesce(l.pid, 0) AS pid, coalesce(a.application_name, '') AS application,
 coalesce(a.datname, p.database, '') AS database, coalesce(a.state, '') AS state, extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)) AS age_seconds, coalesce(p.gid, '') AS prepared
 FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid LEFT JOIN pg_prepared_xacts p ON l.pid IS NULL AND p.transaction = l.transactionid
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.transactionid::text = '%d' LIMIT 1`, uint32(xid)))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	found[0].XID = xid
	return &found[0], nil
}
