package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/logicalmsg"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/replication/internal/pgoutput"
)

// A Source is one database with one slot, one publication and the tables in it. It opens sessions that read it, and looks
// at what they rest on. Its methods may be called from any goroutine, Open only while no other session is open.
type Source struct {
	cfg Config

	mu      sync.Mutex
	warned  map[string]bool // warnings that are logged already; guarded by mu
	outside logicalmsg.Outside

	patience *patience
}

// NewSource makes a Source of a valid Config whose secrets are read. It does not connect.
func NewSource(cfg Config) *Source {
	cfg.CreateTimeout, cfg.Logger = cmp.Or(cfg.CreateTimeout, defaultCreateTimeout), cmp.Or(cfg.Logger, slog.Default())
	return &Source{cfg: cfg, warned: map[string]bool{}, patience: newPatience()}
}

// Config returns the configuration, which must not be changed.
func (s *Source) Config() *Config { return &s.cfg }

// Open connects, checks every precondition and finds the slot, but does not take it.
//
// Where the slot is missing and create is set, the publication is made first, when it is missing too, and then the slot. The
// caller decides whether Config.Create matters: an accepted gap needs a slot in any case. With replaceLost a slot that the server
// has invalidated is dropped and made again, and a missing one is made whatever the table holds. Without them a missing or lost
// slot is no error: the session's Identity says so, nothing else was checked, and the caller judges.
//
// What is not right is an error with the statement that fixes it (fault.Hint). It needs a person where the slot is there
// and events are lost to it: the publication, the table in it, or inserts are gone.
func (s *Source) Open(ctx context.Context, create, replaceLost bool) (*Session, error) {
	return s.openWith(ctx, making{slot: create, replaceLost: replaceLost})
}

// OpenExporting is Open with create and replaceLost set, but where it makes the slot the session has a snapshot of what was there before it:
// exactly the transactions that the stream does not give. The caller has decided what becomes of the rows that are there.
func (s *Source) OpenExporting(ctx context.Context) (*Session, error) {
	return s.openWith(ctx, making{slot: true, replaceLost: true, export: true})
}

// making says what an open may make.
type making struct {
	slot        bool // a missing one
	replaceLost bool
	export      bool // keep the snapshot of a slot that is made
}

func (s *Source) openWith(ctx context.Context, m making) (*Session, error) {
	conn, err := s.cfg.Connection().ConnectReplication(ctx)
	if err != nil {
		return nil, err
	}
	sql, err := s.cfg.Connection().ConnectSQL(ctx)
	if err != nil {
		pg.Close(conn)
		return nil, err
	}
	session, err := s.open(ctx, conn, sql, m)
	if err != nil {
		pg.Close(conn)
		pg.Close(sql)
		return nil, err
	}
	return session, nil
}

func (s *Source) open(ctx context.Context, conn, sql *pgconn.PgConn, m making) (*Session, error) {
	sys, err := pg.Identify(ctx, conn)
	if err != nil {
		return nil, err
	}
	f, err := s.cfg.Names().Describe(ctx, sql)
	if err != nil {
		return nil, err
	}
	f.Streams = true
	stream, err := pg.Row[struct{ Started, Timeout string }](ctx, conn, "read wal_sender_timeout",
		"SELECT pg_postmaster_start_time()::text AS started, (SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout') AS timeout")
	if err != nil {
		return nil, err
	}
	if stream.Started != f.Server.Started {
		// With several hosts, or behind a name that moves, what one server says must not be taken for the other's.
		return nil, fault.Retry(fmt.Errorf("two connections to source.dsn reached different servers"))
	}
	f.Server.SenderTimeout = stream.Timeout // a session can have its own

	lost := f.Slot != nil && f.Slot.Lost() != ""
	var made madeSlot
	if here := f.Slot != nil && !lost; here || f.Slot == nil && m.slot || lost && m.replaceLost {
		if f, made, err = s.prepare(ctx, conn, sql, f, lost, m); err != nil {
			return nil, err
		}
		if err := f.Publishing.Steady(); err != nil && !made.created {
			return nil, err
		}
	}
	identity := identityOf(sys, &s.cfg, f)
	identity.SlotFound.Created = made.created
	cfg := s.session(identity, f, conn.Conn().RemoteAddr())
	cfg.watch, cfg.patience = watcherOn(sql, s.cfg.Slot), s.patience
	if made.snapshot == "" {
		return newSession(conn, sql, cfg), nil
	}
	// The snapshot lives as long as the connection that made the slot does nothing else: the stream needs another one.
	second, err := s.connectBeside(ctx, f)
	if err != nil {
		return nil, err
	}
	session := newSession(second, sql, cfg)
	session.exporter, session.snapshot = conn, made.snapshot
	return session, nil
}

// connectBeside opens another connection in replication mode to the server that f is of.
func (s *Source) connectBeside(ctx context.Context, f *pg.Facts) (*pgconn.PgConn, error) {
	conn, err := s.cfg.Connection().ConnectReplication(ctx)
	if err != nil {
		return nil, err
	}
	started, err := pg.Row[struct{ Started string }](ctx, conn, "read the server's start", "SELECT pg_postmaster_start_time()::text AS started")
	if err == nil && started.Started != f.Server.Started {
		err = fault.Retry(fmt.Errorf("two connections to source.dsn reached different servers"))
	}
	if err != nil {
		pg.Close(conn)
		return nil, err
	}
	return conn, nil
}

// prepare checks everything, and makes what may be made. It returns the facts as they are afterwards. Where the slot replaces one
// that was lost, the rows that are there are part of a gap that a person has accepted: nothing is left to ask about them.
func (s *Source) prepare(ctx context.Context, conn, sql *pgconn.PgConn, f *pg.Facts, lost bool, m making) (_ *pg.Facts, made madeSlot, err error) {
	makes := lost || f.Slot == nil
	if err := s.judge(f, makes); err != nil || !makes {
		return f, made, err
	}
	if !lost && !m.replaceLost {
		if err := s.cfg.RefuseRows(ctx, sql, f); err != nil {
			return nil, made, err
		}
	}
	if made, err = s.make(ctx, conn, sql, f, lost, m.export); err != nil {
		return nil, made, err
	}
	// Somebody else may have made the one or the other in the same moment: what is there now is judged, not what was asked for.
	timeout := f.Server.SenderTimeout
	if f, err = s.cfg.Names().Describe(ctx, sql); err != nil {
		return nil, made, err
	}
	f.Streams, f.Server.SenderTimeout = true, timeout
	return f, made, s.judge(f, false)
}

func (s *Source) judge(f *pg.Facts, makes bool) error {
	if f.Slot != nil && f.Slot.Type == "logical" && f.Slot.Confirmed == 0 && f.Slot.Lost() == "" {
		return fault.Retry(fmt.Errorf("slot %s is still being created by process %d", s.cfg.Slot, f.Slot.ActivePID))
	}
	found := s.cfg.Conditions(f, makes)
	if unmet := condition.Unmet(found); len(unmet) > 0 {
		err := unmet[0].Fault(false)
		if fault.NeedsPerson(err) && f.Slot != nil {
			err = fault.Person(fmt.Errorf("%w; events after %s may be missing", err, f.Slot.Confirmed), fault.Hint(err))
		}
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range found {
		if w := &found[i]; w.Verdict == condition.Warn && !s.warned[w.Why] {
			s.warned[w.Why] = true
			s.cfg.Logger.Warn(w.Why, "slot", s.cfg.Slot, "hint", w.FixText())
		}
	}
	return nil
}

func identityOf(sys pg.System, cfg *Config, f *pg.Facts) cdc.Identity {
	return cdc.Identity{
		SystemID: sys.ID, Timeline: sys.Timeline, History: sys.History,
		Database: f.Server.Database, Slot: cfg.Slot, Server: f.Server.LSN,
		Recovering: f.Server.Recovery, SlotFound: f.Slot.State(), Tableless: cfg.tableless(),
		Published: f.Publishing.Published, Settled: f.Publishing.Settled, Time: f.Server.Now, Started: f.Server.Started,
	}
}

// session is what a Session needs from here. at is the server's address.
func (s *Source) session(identity cdc.Identity, f *pg.Facts, at net.Addr) sessionConfig {
	opened := f.Server
	return sessionConfig{
		slot: s.cfg.Slot, publication: s.cfg.Publication, role: opened.Role, messages: s.messages(),
		walSenderTimeout: pg.Millis(opened.SenderTimeout), confirmKeepalives: s.cfg.ConfirmKeepalives,
		logger: s.cfg.Logger, identity: identity,
		recheck: func(ctx context.Context) (cdc.Identity, error) { return s.recheck(ctx, identity, opened) },
		probe:   s.probeAt(at),
		roots:   f.Roots(),
		catalog: func(ctx context.Context, rel *cdc.Relation) error {
			return s.beside(ctx, func(sql *pgconn.PgConn) error { return pg.FillCatalog(ctx, sql, rel) })
		},
	}
}

// messages are those that a session gives as events.
func (s *Source) messages() (m pgoutput.Messages) {
	if s.cfg.Messages.On() {
		m.Relations, m.Beside = logicalmsg.NewRelations(s.cfg.Messages), len(s.cfg.AllTables()) > 0
		m.Outside = s.outside.Add
	}
	return m
}

// Remarks is the Remarks of a relay.Router, for what the source passes over. It may be called at any time. What the server
// sends again after a lost session counts again.
func (s *Source) Remarks(each func(what string, severe bool, count uint64, last string)) {
	s.outside.Remarks(each)
}

// beside does something on an ordinary connection made for it.
func (s *Source) beside(ctx context.Context, do func(sql *pgconn.PgConn) error) error {
	sql, err := s.cfg.Connection().ConnectSQL(ctx)
	if err != nil {
		return err
	}
	defer pg.Close(sql)
	return do(sql)
}

// probeAt makes a probe of the server at one address, which the stream comes from. Anything else that source.dsn leads to
// says nothing about that server: not another of its hosts, nor the one that its name means by now.
func (s *Source) probeAt(at net.Addr) func(context.Context) error {
	return func(ctx context.Context) error {
		cc, err := s.cfg.Connection().SQLConfig()
		if err != nil {
			return err
		}
		cc.LookupFunc = func(context.Context, string) ([]string, error) { return []string{at.String()}, nil }
		dial := cc.DialFunc
		cc.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, at.Network(), at.String()) }
		sql, err := s.cfg.Connection().Connect(ctx, cc, "connect")
		if err != nil {
			return err
		}
		defer pg.Close(sql)
		_, err = sql.Exec(ctx, "SELECT 1").ReadAll()
		return pg.Classify(err)
	}
}

// recheck reads the identity once more, for a session that found was and opened. Another server, another life of the server
// or another timeline is not judged here: opening anew reads it whole.
func (s *Source) recheck(ctx context.Context, was cdc.Identity, opened pg.Server) (cdc.Identity, error) {
	now := was
	err := s.beside(ctx, func(sql *pgconn.PgConn) error {
		server, err := pg.ReadServer(ctx, sql)
		if err != nil {
			return err
		}
		if server.Started != opened.Started || server.SystemID != opened.SystemID || server.Recovery != opened.Recovery || server.Timeline != opened.Timeline {
			return fault.Retry(errors.New("the server is not the one that the session was opened on"))
		}
		slot, err := pg.ReadSlot(ctx, sql, s.cfg.Slot)
		if err != nil {
			return err
		}
		now.Server, now.Time, now.SlotFound = server.LSN, server.Now, slot.State()
		now.SlotFound.Created = was.SlotFound.Created && slot != nil
		p, err := s.cfg.Names().ReadPublishing(ctx, sql, server.Version) // the slot may have been waited for a long time
		if err != nil {
			return err
		}
		now.Published, now.Settled = p.Published, p.Settled
		return p.Steady()
	})
	if err != nil {
		return cdc.Identity{}, fmt.Errorf("read slot %s again: %w", s.cfg.Slot, err)
	}
	return now, nil
}

// Check asks, on a connection of its own, whether what the stream rests on is there: the slot, the publication with inserts
// into each table and the mapped columns in it. It says what was found, also beside an error that needs a person: then
// something is missing, and events may be missing with it. A retryable error says only that Postgres could not be asked.
func (s *Source) Check(ctx context.Context) (found cdc.Identity, err error) {
	sql, err := s.cfg.Connection().ConnectSQL(ctx)
	if err != nil {
		return found, fault.Retry(fmt.Errorf("check the source: %w", err))
	}
	defer pg.Close(sql)
	f, err := s.cfg.Names().Describe(ctx, sql)
	if err != nil {
		return found, fault.Retry(fmt.Errorf("check the source: %w", err))
	}
	found = identityOf(pg.System{ID: f.Server.SystemID, Timeline: s.timeline(ctx, f)}, &s.cfg, f)
	if unmet := s.cfg.unmetRunning(f); len(unmet) > 0 {
		bad := unmet[0]
		if i := slices.IndexFunc(unmet, func(f *condition.Finding) bool { return f.Need == condition.Losing }); i >= 0 {
			bad = unmet[i]
		}
		if bad.Need == condition.Losing && f.Slot != nil && f.Slot.Lost() == "" {
			found.Unpublished = bad.Why
		}
		if bad.Need == condition.Losing || f.Slot == nil {
			bad.Fix = s.cfg.afterLoss(f, bad)
		}
		return found, bad.Fault(true)
	}
	return found, f.Publishing.Steady()
}

// timeline is the timeline of the server that f is of, 0 if it's unknown. Only IDENTIFY_SYSTEM tells which one a standby has replayed, and that
// changes without a restart when its primary is replaced by another standby.
func (s *Source) timeline(ctx context.Context, f *pg.Facts) uint32 {
	if !f.Server.Recovery {
		return f.Server.Timeline
	}
	conn, err := s.connectBeside(ctx, f)
	if err != nil {
		return 0
	}
	defer pg.Close(conn)
	sys, err := pg.Identify(ctx, conn)
	if err != nil {
		return 0
	}
	return sys.Timeline
}
