// Package replication reads the inserts of the outbox table from the WAL. A Source opens Sessions: each is a connection with the
// stream of one replication slot, decoded from pgoutput. The package also creates and drops the slot and the publication, judges
// whether a database has what a stream needs (Config.Conditions), and has the SQL that adds what is missing.
//
// It isn't an API yet: anything in it may change with any release. The API is the root package, outbox and inbox.
package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/backoff"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/wait"
	"github.com/walpost/walpost/replication/internal/pgoutput"
)

// A Session is one replication connection and, from Start on, the stream of one slot. It promises what relay.Session
// asks for: events whole transaction by whole transaction, in commit order; flush positions that never exceed what Confirm
// was told; an error, never silence, when the stream is over. It is used by one goroutine at a time.
//
// A server that wants to stop waits for our confirmation without end. So a goroutine of the session finds that out and closes
// the stream, whether Next is being called or not.
type Session struct {
	cfg  sessionConfig
	conn *pgconn.PgConn // from Start on it sends statuses, and the wire does the rest
	sql  prober
	wire *wire // from Start on

	identity cdc.Identity
	dec      *pgoutput.Decoder
	order    pgoutput.Order
	callCtx  context.Context // of the running Next, for the catalog

	began    cdc.LSN // where the stream begins; does not change once it was started
	received cdc.LSN // newest position read: reported as write
	flush    cdc.LSN // newest safe position: reported as flush and apply; never goes back
	idle     cdc.LSN // newest keepalive handed on
	err      error   // what ended the session

	statusAt time.Time // when the newest status was sent
	owed     bool      // an answer to a keepalive is due
	spin     spin

	exporter *pgconn.PgConn // holds snapshot; nil for none, and once it is freed
	snapshot string
	freeing  sync.Mutex // guards both: the snapshot may be freed by another goroutine

	ended   atomic.Pointer[error] // set by the shutdown detector when it closes the connection
	suspect chan struct{}         // asks the detector for a probe now; capacity one
	// stopDetector stops the detector and waits for it; nil before Start.
	stopDetector func()
}

// A sessionConfig is what a Session needs to know beside its connection.
type sessionConfig struct {
	slot        string
	publication string
	role        string // of the connection
	messages    pgoutput.Messages
	// walSenderTimeout is the server's wal_sender_timeout on the replication connection; 0 is off.
	walSenderTimeout time.Duration
	// confirmKeepalives hands keepalives on as positions (Idle with Pos > 0).
	confirmKeepalives bool
	logger            *slog.Logger

	// identity is what Open found, and what Identity returns until Start.
	identity cdc.Identity
	// recheck reads the identity and the slot once more by SQL. Start calls it when it holds the slot.
	recheck func(ctx context.Context) (cdc.Identity, error)
	// catalog fills the catalog fields of a relation that nobody else has seen yet, on a connection of its own. Nil if
	// nobody needs them. Next calls it, on the caller's goroutine.
	catalog func(ctx context.Context, rel *cdc.Relation) error
	// roots are the tables that partitions' rows are rows of, by the partition's OID.
	roots map[uint32]pgname.Table
	// watch looks at the process that has the slot while Start waits for it. Its functions are nil if nobody can.
	watch watcher
	// patience is the Source's; nil for a session whose slot nobody else reads.
	patience *patience
	// probe makes a fresh SQL connection, asks it something and closes it. The session's probe goroutine calls it.
	probe func(ctx context.Context) error
}

// A prober is an open SQL connection beside the stream (*pgx.Conn and *pgconn.PgConn are). The session owns it from
// newSession on: its probe goroutine alone uses it, and Close closes it. Nil is allowed: then only fresh connections are
// made (sessionConfig.probe).
type prober interface {
	Ping(ctx context.Context) error
	Close(ctx context.Context) error
}

// newSession makes a session of conn, which is an idle connection in replication mode. The session owns conn and sql from
// now on.
func newSession(conn *pgconn.PgConn, sql prober, cfg sessionConfig) *Session {
	return &Session{conn: conn, sql: sql, cfg: cfg, identity: cfg.identity, suspect: make(chan struct{}, 1)}
}

// Identity is what Open found; after Start, what was found once more while this session holds the slot.
func (s *Session) Identity() cdc.Identity { return s.identity }

// Began is where the stream of a started session begins: it gives the transactions that end behind. Any goroutine may ask.
func (s *Session) Began() cdc.LSN { return s.began }

// Snapshot is the name of the snapshot of what was there before the slot, where OpenExporting made the slot, until it is freed. Any
// goroutine may ask.
func (s *Session) Snapshot() string {
	s.freeing.Lock()
	defer s.freeing.Unlock()
	return s.snapshot
}

// FreeSnapshot ends the snapshot's connection: who has taken the snapshot keeps it. Any goroutine may do it.
func (s *Session) FreeSnapshot() {
	s.freeing.Lock()
	conn := s.exporter
	s.exporter, s.snapshot = nil, ""
	s.freeing.Unlock()
	pg.Close(conn)
}

// Start takes the slot and streams from at. A slot in use is waited for until ctx ends.
func (s *Session) Start(ctx context.Context, at cdc.Position) error {
	if s.wire != nil || s.err != nil {
		return errors.New("session was started before")
	}
	if err := s.start(ctx, at.LSN()); err != nil {
		if s.err = err; s.wire != nil {
			s.wire.deadlines.forget()
		}
		return err
	}
	return nil
}

func (s *Session) start(ctx context.Context, at cdc.LSN) error {
	if s.cfg.patience != nil {
		if err := s.promise(ctx); err != nil {
			return err
		}
	}
	// Behind the last use of the client's own reader: on a slow machine it goes on reading beside, and would take the first bytes of the stream.
	if err := s.conn.SyncConn(ctx); err != nil {
		return fault.Retry(fmt.Errorf("start replication of slot %s: %w", s.cfg.slot, err))
	}
	s.wire = newWire(s.conn.Conn())
	s.received = at
	s.seed()
	if err := s.takeSlot(ctx, at); err != nil {
		return err
	}
	s.statusAt = time.Now()
	s.dec = pgoutput.NewDecoder(max(at, s.confirmed()), s.fill(), s.cfg.messages)
	s.order.On = s.cfg.messages.Beside
	if s.cfg.recheck != nil {
		identity, err := s.cfg.recheck(ctx)
		if err != nil {
			return fmt.Errorf("look at slot %s once more: %w", s.cfg.slot, err)
		}
		s.identity = identity
		s.seed()
	}
	s.idle = s.received
	s.began = max(at, s.confirmed())
	s.detectShutdown()
	return nil
}

// seed takes over the slot's own position: it is where flush stands, whatever we know.
func (s *Session) seed() {
	s.flush = max(s.flush, s.confirmed())
	s.received = max(s.received, s.flush)
}

// confirmed is the slot's own position.
func (s *Session) confirmed() cdc.LSN { return s.identity.SlotFound.Confirmed.LSN() }

// fill is what completes a relation, nil where there is nothing to complete: from the catalog, where somebody asked for that, and with the
// present name of its table. The server decodes old WAL by the catalog as it was. So rows come under another name if they were written before
// the table was renamed. They come under the names of partitions if they were written before the publication got
// publish_via_partition_root. Open refuses such a publication only as long as it is so.
func (s *Session) fill() func(*cdc.Relation) error {
	if s.cfg.catalog == nil && len(s.cfg.roots) == 0 {
		return nil
	}
	return func(rel *cdc.Relation) error {
		if s.cfg.catalog != nil {
			if err := s.cfg.catalog(s.callCtx, rel); err != nil {
				return err
			}
		}
		if root, ok := s.cfg.roots[rel.ID]; ok && (rel.Schema != root.Schema || rel.Name != root.Name) {
			s.cfg.logger.Warn("these rows come under another name, because they were written before the table was renamed, or before publish_via_partition_root was set: walpost treats them as rows of the table",
				"name", rel.String(), "table", root.String())
			rel.Schema, rel.Name = root.Schema, root.Name
		}
		return nil
	}
}

// Next returns the next event, or an Idle with Pos 0 when nothing arrived for wait. A context that ends is no end of the
// session: Confirm and Close work on. What it interrupted may be lost to a later Next.
func (s *Session) Next(ctx context.Context, wait time.Duration) (*cdc.Event, error) {
	if err := s.over(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	s.callCtx = ctx
	ev, err := s.next(ctx, wait)
	if err != nil && !interrupted(ctx, err) {
		err = s.fail(err)
	}
	return ev, err
}

func (s *Session) next(ctx context.Context, wait time.Duration) (*cdc.Event, error) {
	var deadline time.Time
	for {
		if ev := s.order.Next(); ev != nil {
			return ev, nil
		}
		kind, body, ok, err := s.wire.take()
		switch {
		case err != nil:
			return nil, err
		case ok:
			ev, err := s.message(kind, body)
			if err == nil {
				ev = s.order.Take(ev)
			}
			if ev != nil || err != nil {
				return ev, err
			}
			continue
		}
		now := time.Now()
		switch {
		case deadline.IsZero():
			deadline = now.Add(wait)
		case !now.Before(deadline):
			// A message is on its way, and takes its time. The caller has signs of life to give meanwhile.
			return s.dec.Idle(0), nil
		}
		until := deadline
		if s.owed {
			if due := s.statusAt.Add(s.answerEvery()); !now.Before(due) {
				if err := s.sendStatus(ctx, now); err != nil {
					return nil, err
				}
			} else if due.Before(until) {
				until = due
			}
		}
		s.dec.Release()
		switch err := s.wire.fill(ctx, now, until); {
		case err == nil:
		case errors.Is(err, errQuiet):
			if err := s.silence(); err != nil {
				return nil, err
			}
			if !until.Before(deadline) {
				return s.dec.Idle(0), nil
			}
		case interrupted(ctx, err):
			return nil, err
		default:
			return nil, s.broken(err)
		}
	}
}

// message handles one message of the server. A nil event means that it gave none.
func (s *Session) message(kind byte, body []byte) (*cdc.Event, error) {
	switch kind {
	case 'd':
		return s.copyData(body)
	case 'E':
		return nil, s.streamFault(refusal(body))
	case 'N':
		return nil, s.notice(body)
	case 'S': // a parameter changed; what matters is pinned
		return nil, nil
	case 'c', 'C', 'Z': // the server has ended the stream: it shuts down, with everything confirmed
		return nil, fault.Retry(fmt.Errorf("stream of slot %s: the server ended it", s.cfg.slot))
	}
	return nil, fmt.Errorf("stream of slot %s: unexpected message %q", s.cfg.slot, kind)
}

// copyData handles what is in the stream: WAL data, or a keepalive. pglogrepl's results are slices of body: nothing is
// copied or allocated.
func (s *Session) copyData(body []byte) (*cdc.Event, error) {
	var kind byte
	if len(body) > 0 {
		kind = body[0]
	}
	switch kind {
	case pglogrepl.XLogDataByteID:
		data, err := pglogrepl.ParseXLogData(body[1:])
		if err != nil {
			return nil, fmt.Errorf("stream of slot %s: %w", s.cfg.slot, err)
		}
		pos := cdc.LSN(data.WALStart) // 0/0 for messages that describe, such as Relation
		s.received = max(s.received, pos)
		s.spin.count = 0
		ev, err := s.dec.Decode(data.WALData, pos)
		if err != nil {
			return nil, fmt.Errorf("stream of slot %s: %w", s.cfg.slot, err)
		}
		if ev != nil && ev.Kind == cdc.Commit {
			s.received = max(s.received, ev.Pos.LSN())
		}
		return ev, nil
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(body[1:])
		if err != nil {
			return nil, fmt.Errorf("stream of slot %s: %w", s.cfg.slot, err)
		}
		return s.keepalive(cdc.LSN(k.ServerWALEnd), k.ReplyRequested)
	}
	return nil, fmt.Errorf("stream of slot %s: malformed message %q of %d bytes", s.cfg.slot, kind, len(body))
}

// Close ends the stream and waits until the slot is free, as long as ctx gives the time, and not more than closeWithin.
func (s *Session) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeWithin)
	defer cancel()
	s.FreeSnapshot()
	if s.stopDetector != nil {
		s.stopDetector()
	}
	if s.sql != nil {
		_ = s.sql.Close(ctx) // it holds nothing
		s.sql = nil
	}
	if s.wire == nil {
		conn := s.conn
		if s.conn = nil; conn == nil {
			return nil
		}
		return conn.Close(ctx)
	}
	defer s.wire.deadlines.forget()
	defer s.wire.kill()
	alive := s.over() == nil && s.dec != nil
	s.err = errClosed
	if !alive {
		return nil
	}
	// CopyDone, then Terminate. The server acts on what comes before them first: the newest status counts.
	if err := s.wire.write([]byte{'c', 0, 0, 0, 4, 'X', 0, 0, 0, 4}, s.writeDeadline(ctx)); err != nil {
		return fmt.Errorf("close the stream of slot %s: %w", s.cfg.slot, err)
	}
	if err := s.drain(ctx); err != nil {
		return fmt.Errorf("close the stream of slot %s: %w", s.cfg.slot, err)
	}
	return nil
}

const closeWithin = 15 * time.Second

// freeRetry spaces out the looks at whether the server has freed the slot.
var freeRetry = backoff.Backoff{Min: 10 * time.Millisecond, Max: 500 * time.Millisecond}

var errClosed = errors.New("session is closed")

// drain waits for the server's end of the connection, or for the slot to be free. It reads only so much: a server in the
// middle of a transaction looks at what we sent when it cannot send on.
func (s *Session) drain(ctx context.Context) error {
	for budget := bufferSize; budget > 0; {
		s.wire.r, s.wire.w = 0, 0
		err := s.wire.fill(ctx, time.Now(), time.Now().Add(closeWithin))
		switch {
		case err == nil:
			budget -= s.wire.w
		case errors.Is(err, errQuiet), interrupted(ctx, err):
			return err
		default:
			return nil // the server is gone, and the slot with it
		}
	}
	for looks := 1; s.cfg.recheck != nil; looks++ {
		identity, err := s.cfg.recheck(ctx)
		if err != nil || !identity.SlotFound.Active {
			return err
		}
		if !wait.For(ctx, freeRetry.Pause(looks)) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// over returns what has ended the session, nil while it lives.
func (s *Session) over() error {
	switch {
	case s.err != nil:
		return s.err
	case s.dec == nil:
		return errors.New("session was not started")
	}
	if p := s.ended.Load(); p != nil {
		s.err = *p
	}
	return s.err
}

// fail records what ended the session. The shutdown that the detector found is a better reason than the connection that it closed.
func (s *Session) fail(err error) error {
	if p := s.ended.Load(); p != nil {
		err = *p
	}
	s.err = err
	return err
}

// broken gives an error of the connection its behaviour.
func (s *Session) broken(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return lost(s.cfg.slot, err)
}
