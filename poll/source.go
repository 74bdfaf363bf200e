package poll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
)

// A Source opens sessions that poll one table, and looks at what they rest on. Its methods may be
// called from any goroutine, Open only while no other session is open.
type Source struct {
	set    Settings
	cursor progress // of the newest session's goroutine
	claims *Claims

	mu     sync.Mutex
	pid    int32 // of the newest session's server process
	status Status
	border *cdc.Snapshot // what it sees is delivered by another source; nil for nothing
	sees   string        // the text of border
}

// NewSource makes a Source. It does not connect.
func NewSource(set Settings) *Source {
	set.Logger = cmp.Or(set.Logger, slog.Default())
	s := &Source{set: set}
	s.claims = newClaims(&s.set)
	return s
}

// Claims are the rows that this process has claimed, nil if the strategy claims none.
func (s *Source) Claims() *Claims {
	if !s.set.Claims() {
		return nil
	}
	return s.claims
}

// newestProcess is the server process of the newest session, 0 before the first.
func (s *Source) newestProcess() int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// connect opens a connection whose values have the text that a stream gives. A server that loses the
// client notices within half a minute, because the connection holds the locks.
func (s *Source) connect(ctx context.Context, onNotify func()) (*pgconn.PgConn, error) {
	cc, err := s.set.DB.Config()
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"statement_timeout": "60s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "60s",
		"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "4",
	} {
		if _, given := cc.RuntimeParams[name]; !given {
			cc.RuntimeParams[name] = value
		}
	}
	cc.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { onNotify() }
	return s.set.DB.Connect(ctx, cc, "connect to poll the table")
}

// Open connects, checks every precondition and finds out who polls, but takes no lock. With create, it
// makes a beginning: the session's Identity has it as a slot that was made. replaceLost asks for a
// beginning whatever the table holds.
func (s *Source) Open(ctx context.Context, create, replaceLost bool) (*Session, error) {
	session := s.session(nil, nil)
	conn, err := s.connect(ctx, func() { session.woken = true })
	if err != nil {
		return nil, err
	}
	session.conn = conn
	if err := session.open(ctx, create, replaceLost); err != nil {
		pg.Close(conn)
		return nil, err
	}
	return session, nil
}

// session makes a Session of the strategy. f may be nil for one that reads no rows yet.
func (s *Source) session(conn *pgconn.PgConn, f *Facts) *Session {
	session := &Session{src: s, conn: conn, facts: f}
	session.strategy = &cursor{Session: session}
	if s.set.Claims() {
		session.strategy = &claimer{Session: session, Claims: s.claims}
	}
	if f != nil {
		session.rows = s.set.rowReader(f)
	}
	return session
}

func (s *Session) open(ctx context.Context, create, replaceLost bool) (err error) {
	set := &s.src.set
	if s.facts, err = set.Describe(ctx, s.conn); err != nil {
		return err
	}
	if unmet := condition.Unmet(set.Conditions(s.facts)); len(unmet) > 0 {
		err := unmet[0].Fault(s.src.newestProcess() != 0)
		if s.facts.Server.Recovery {
			err = fault.Retry(err)
		}
		return err
	}
	more, err := pg.Row[struct {
		Holder, PID int32
	}](ctx, s.conn, "look for other relays", "SELECT pg_backend_pid() AS pid, "+
		holderQuery(nameLock, digest(set.Name))+" AS holder")
	if err != nil {
		return err
	}
	s.pid, s.rows = more.PID, set.rowReader(s.facts)
	s.identity = set.identity(s.facts)
	if s.identity.History, err = s.src.history(ctx, s.conn, &s.facts.Server); err != nil {
		return err
	}
	if create {
		at, err := s.beginning(ctx, replaceLost)
		if err != nil {
			return err
		}
		s.identity.SlotFound.Exists, s.identity.SlotFound.Created, s.identity.SlotFound.Confirmed = true, true, cdc.Numbered(at)
	}
	if !set.Claims() { // workers have the lock together
		s.identity.SlotFound.ActivePID = more.Holder
	}
	return nil
}

func (s *Settings) identity(f *Facts) cdc.Identity {
	server := &f.Server
	polled := s.Counts()
	polled.Table, polled.OID, polled.Database = s.Table.String(), f.Table.OID, server.DatabaseOID
	return cdc.Identity{
		SystemID: server.SystemID, Timeline: server.Timeline, Database: server.Database, Polled: polled,
		Server: server.LSN, Recovering: server.Recovery, Time: server.Now, Started: server.Started,
	}
}

// history is where each older timeline of the server ended. A role that may replicate can read it. For
// any other role, a server that was not restarted since its promotion tells where it was promoted: that
// is the end of the timeline before, if the numbers of the two follow each other. After a restart or a
// crash, the server tells where that recovery ended instead, which is beyond the promotion. Only a
// server that has received WAL in its present life was promoted in it.
func (s *Source) history(ctx context.Context, conn *pgconn.PgConn, server *pg.Server) ([]cdc.Fork, error) {
	if server.Timeline <= 1 {
		return nil, nil
	}
	if stream, err := s.set.DB.ConnectReplication(ctx); err == nil {
		defer pg.Close(stream)
		if sys, err := pg.Identify(ctx, stream); err == nil && sys.ID == server.SystemID && sys.Timeline == server.Timeline {
			return sys.History, nil
		}
	}
	replayed, err := pg.Row[struct{ At *cdc.LSN }](ctx, conn, "read where the server was promoted", "SELECT CASE WHEN pg_last_wal_receive_lsn() IS NOT NULL THEN pg_last_wal_replay_lsn() END AS at")
	if err != nil || replayed.At == nil {
		return nil, err
	}
	return []cdc.Fork{{Timeline: server.Timeline - 1, End: *replayed.At}}, nil
}

// Check asks, on a connection of its own, whether everything that polling rests on is there. An error
// that needs a person says that rows may be missing until somebody acts.
func (s *Source) Check(ctx context.Context) (found cdc.Identity, err error) {
	conn, err := s.set.DB.ConnectSQL(ctx)
	if err != nil {
		return found, fault.Retry(fmt.Errorf("check the source: %w", err))
	}
	defer pg.Close(conn)
	f, err := s.set.Describe(ctx, conn)
	if err != nil {
		return found, fault.Retry(fmt.Errorf("check the source: %w", err))
	}
	found = s.set.identity(f)
	if unmet := condition.Unmet(s.set.Conditions(f)); len(unmet) > 0 && !f.Server.Recovery {
		return found, unmet[0].Fault(true)
	}
	return found, nil
}

// recheck reads the identity once more, when the session has the lock.
func (s *Session) recheck(ctx context.Context) error {
	server, err := pg.ReadServer(ctx, s.conn)
	if err != nil {
		return err
	}
	opened := &s.facts.Server
	if server.Started != opened.Started || server.SystemID != opened.SystemID || server.Recovery != opened.Recovery || server.Timeline != opened.Timeline {
		return fault.Retry(errors.New("the server is not the one that the session was opened on"))
	}
	s.identity.Server, s.identity.Time = server.LSN, server.Now
	return nil
}
