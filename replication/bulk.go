package replication

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/size"
)

// Reading in bulk
//
// The walsender sends each message by itself, three for a transaction of one row. SQL functions that read a slot send blocks of
// messages. So a session that starts far behind reads the WAL up to a position, until, by SQL, and what commits behind it by the stream:
//
//   - The stream begins at until, before anything is read by SQL. So its walsender holds the slot, as the lock against other relays,
//     and its statuses confirm what is safe: a start that lies ahead confirms nothing. Nobody reads the stream yet.
//   - What is read by SQL is a temporary copy of the slot, which goes with its connection.
//   - Both go by the beginning of the commit record (SnapBuildXactNeedsSkip), so each transaction comes by exactly one way.
//
// Each call of the function decodes from the copy's restart_lsn again, and keeps all that it gives until the end of the call. So calls are
// bounded, and one is as long as what it decodes again. A transaction that is long, in time or in bytes, makes that costly. Then, and after
// any error, the stream reads this part of the WAL. A walsender does not move restart_lsn while it waits for us, and the server keeps
// the WAL behind it. So until is not farther than a segment, and a new session reads the next one.
const (
	farBehind = 64 << 20 // bytes of WAL behind the server from which on reading in bulk pays

	// In parts of that:
	segment     = 16 // one session reads in bulk
	mostChunk   = 4  // one call reads
	leastChunk  = 4  // one call reads; it is the divisor
	mostAgain   = 16 // one call decodes again
	mostNothing = 2  // read without a transaction; likewise

	// A call that was begun holds the server's oldest snapshot. One that takes slowSnapshot makes the next one small, and one that nobody
	// reads for heldSnapshot is given up.
	slowSnapshot = 10 * time.Second
	heldSnapshot = 30 * time.Second
)

// catchUp says when to read in bulk. Sessions of one Source share it.
type catchUp struct {
	far    cdc.LSN       // 0: never
	most   cdc.LSN       // one session reads
	head   atomic.Uint64 // of the server, as Check saw it last
	paused atomic.Uint64 // up to here, the stream reads
	read   atomic.Uint64 // up to here, sessions that gave way have read
}

func newCatchUp(cfg *Config) *catchUp {
	c := &catchUp{}
	switch cfg.BulkCatchUp {
	case "auto":
		c.far = farBehind
	case "never", "":
	default:
		var far size.Bytes
		_ = far.UnmarshalText([]byte(cfg.BulkCatchUp)) // which the field's pattern is of
		c.far = cdc.LSN(far)
	}
	if !cfg.ConfirmKeepalives { // a fork; and where the chunks have no transaction, nothing could be confirmed
		c.far = 0
	}
	c.most = segment * c.far
	return c
}

// pays reports whether a session that begins at the position at should read in bulk.
func (c *catchUp) pays(at, head cdc.LSN) bool {
	return c != nil && c.far > 0 && head > at && head-at >= c.far && uint64(at) >= c.paused.Load()
}

// pause leaves the WAL up to a position to the stream.
func (c *catchUp) pause(upTo cdc.LSN) { c.paused.Store(uint64(upTo)) }

// spare says why the server of f cannot be read in bulk, and "" if it can.
func spare(f *pg.Facts) string {
	switch {
	case f.Server.Recovery:
		return "it is a standby"
	case f.Slot != nil && f.Slot.Failover: // the copy would be read before the standbys have the WAL
		return "the slot is a failover slot"
	case f.Slot != nil && f.Slot.WALStatus == "unreserved": // the stream lets go of WAL sooner
		return "the slot is about to lose WAL"
	// One more stays free: ReadAhead needs it, or others do.
	case f.Server.Slots+2 > f.Server.MaxSlots:
		return "max_replication_slots leaves no slot for a copy"
	case f.Server.Senders+2 > f.Server.MaxSenders:
		return "max_wal_senders leaves no connection for a copy"
	}
	return ""
}

// bulk is the reading of one session.
type bulk struct {
	*catchUp
	conn        *pgconn.PgConn
	wire        *wire
	copied      string // the copy's name, quoted
	read        string // the SQL that reads a chunk; %s is its end
	from, until cdc.LSN

	at, end cdc.LSN   // read up to at, and asked up to end; end is 0 before the copy stands at from
	restart cdc.LSN   // of the copy
	gave    cdc.LSN   // where the newest transaction or the reading began
	began   time.Time // of the call; zero while none runs
	slow    bool      // the newest call took long
	header  bool      // the next row comes behind the header of COPY
	skip    bool      // the transaction is the stream's
}

// plan returns where the stream begins: at the position at, or farther on if what is before is read in bulk.
func (s *Session) plan(at cdc.LSN) (until cdc.LSN) {
	c, head := s.cfg.catchUp, s.cfg.identity.Server
	if c != nil {
		c.head.Store(uint64(head)) // what Check saw may be of another server
	}
	if at = max(at, s.confirmed()); !c.pays(at, head) {
		return at
	}
	// What is not acknowledged yet is read again, and may be more than a segment.
	until = min(head, max(at, cdc.LSN(c.read.Load()))+c.most)
	if s.cfg.noBulk != "" {
		s.cfg.logger.Info("far behind, but walpost cannot read in bulk: "+s.cfg.noBulk, "slot", s.cfg.slot, "behind", size.Bytes(head-at).Roughly())
		c.pause(until)
		return at
	}
	return until
}

// openBulk makes the copy of the slot, which this session holds, for what commits from from on and before until.
func (s *Session) openBulk(ctx context.Context, from, until cdc.LSN) error {
	conn, err := s.cfg.beside(ctx)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("walpost_bulk_%d", conn.PID())
	b := &bulk{catchUp: s.cfg.catchUp, conn: conn, copied: pgname.QuoteLiteral(name), from: from, until: until, at: from, gave: from}
	b.read = "COPY (SELECT lsn, data FROM pg_catalog.pg_logical_slot_get_binary_changes(" + b.copied + ", '%s', NULL"
	for _, option := range s.options() {
		b.read += ", " + quoteText(option.name) + ", " + pgname.QuoteLiteral(option.value)
	}
	b.read += ")) TO STDOUT (FORMAT binary);"
	_, err = conn.Exec(ctx, endsWithUs+"SELECT FROM pg_catalog.pg_copy_logical_replication_slot("+pgname.QuoteLiteral(s.cfg.slot)+", "+b.copied+", true)").ReadAll()
	if err == nil {
		err = conn.SyncConn(ctx) // see Session.start
	}
	if err != nil {
		pg.Close(conn)
		return b.fault(s.cfg.slot, err)
	}
	b.wire = newWire(conn.Conn())
	s.bulk = b
	s.cfg.logger.Info("far behind: reading in bulk", "slot", s.cfg.slot, "from", from.String(), "until", until.String())
	return nil
}

// endsWithUs has the server notice that this machine is gone: wal_sender_timeout does not count here, and the copy keeps WAL. The last one
// also ends a connection that is not read, so it is longer than heldSnapshot.
const endsWithUs = "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3; SET tcp_user_timeout = '60s'; "

// denied reports whether the server will never let the role copy a slot, or read the copy.
func denied(err error) bool {
	state := pg.SQLState(err)
	return state == pg.StateNoRight || state == stateNoFunction || state == stateNotSupported
}

// fault is what an error of the reading means: the stream reads this part of the WAL, and judges whether it can be read.
func (b *bulk) fault(slot string, err error) error {
	b.pause(b.until)
	if denied(err) {
		b.pause(cdc.MaxLSN)
	}
	return fault.Retry(fmt.Errorf("read slot %s in bulk up to %s: %w", slot, b.until, err))
}

// ask begins a call, unless one runs.
func (b *bulk) ask(deadline time.Time) error {
	if !b.began.IsZero() {
		return nil
	}
	sql := fmt.Sprintf("SELECT FROM pg_catalog.pg_replication_slot_advance(%s, '%s');", b.copied, b.from) // which decodes faster
	if b.restart > 0 {
		chunk := max(b.far/leastChunk, min(b.at-min(b.at, b.restart), mostChunk*b.far))
		if b.slow {
			chunk = b.far / leastChunk
		}
		b.end = min(b.at+chunk, b.until)
		sql = fmt.Sprintf(b.read, b.end)
		b.restart = 0
	}
	sql += fmt.Sprintf(" SELECT restart_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = %s AND confirmed_flush_lsn >= '%s'", b.copied, max(b.from, b.end))
	query, err := (&pgproto3.Query{String: sql}).Encode(nil)
	if err != nil {
		return err
	}
	b.began = time.Now()
	return b.wire.write(query, deadline)
}

// bulkMessage handles one message of the server, of the reading in bulk.
func (s *Session) bulkMessage(kind byte, body []byte) (*cdc.Event, error) {
	b := s.bulk
	switch kind {
	case 'd':
		return s.bulkRow(body)
	case 'D': // nothing, of the first SELECT, or the one value of the last
		if lsn := body; len(lsn) > 6 {
			var err error
			b.restart, err = cdc.ParseLSN(string(lsn[6:]))
			return nil, err
		}
		return nil, nil
	case 'H':
		b.header = true
		return nil, nil
	case 'Z':
		return s.chunkRead()
	case 'E':
		return nil, refusal(body)
	case 'N':
		return nil, s.notice(body)
	case 'T', 'C', 'c', 'S':
		return nil, nil
	}
	return nil, fmt.Errorf("unexpected message %q", kind)
}

// copyHeader is the length of what begins a binary COPY: https://www.postgresql.org/docs/current/sql-copy.html
const copyHeader = 11 + 4 + 4

// bulkRow handles a row of COPY: 2 as the number of fields, the length 8, an LSN, the length of a message, the message.
func (s *Session) bulkRow(row []byte) (*cdc.Event, error) {
	b := s.bulk
	if b.header && len(row) >= copyHeader {
		b.header = false
		row = row[copyHeader:]
	}
	const fixed = 2 + 4 + 8 + 4
	switch fields := len(row); {
	case fields == 0, fields == 2 && binary.BigEndian.Uint16(row) == 1<<16-1: // the end
		return nil, nil
	case fields <= fixed || binary.BigEndian.Uint16(row) != 2:
		return nil, fmt.Errorf("malformed row of %d bytes", len(row))
	}
	pos, msg := cdc.LSN(binary.BigEndian.Uint64(row[6:])), row[fixed:]
	switch msg[0] {
	case 'B':
		if len(msg) > 8 {
			commit := cdc.LSN(binary.BigEndian.Uint64(msg[1:]))
			b.skip = commit < b.from || commit >= b.until
			b.gave = max(b.gave, min(commit, b.end))
		}
	case 'R', 'Y': // descriptions count, wherever they come
		pos = 0
	}
	if b.skip && msg[0] != 'R' && msg[0] != 'Y' {
		return nil, nil
	}
	s.received = max(s.received, pos)
	ev, err := s.dec.Decode(msg, pos)
	if ev != nil && ev.Kind == cdc.Commit {
		s.received = max(s.received, ev.Pos.LSN())
	}
	return ev, err
}

// chunkRead ends a call, and gives its end as a position like a keepalive's: all that commits before it was read.
func (s *Session) chunkRead() (*cdc.Event, error) {
	b := s.bulk
	b.slow, b.began, b.skip = time.Since(b.began) > slowSnapshot, time.Time{}, false
	again, most := b.at-min(b.at, b.restart), mostAgain*b.far
	if b.end == 0 { // the main slot may have stayed where the segment before began
		most *= 2
	}
	switch {
	case s.dec.InTx:
		return nil, fmt.Errorf("the chunk up to %s ends within the transaction that commits at %s", b.end, s.dec.CommitLSN)
	case b.restart == 0:
		return nil, fmt.Errorf("the copy of the slot is not at %s", max(b.from, b.end))
	case b.end < b.until && b.end-min(b.end, b.gave) > b.far/mostNothing:
		b.pause(min(b.until, b.end+mostChunk*b.far))
		s.reopen = fmt.Errorf("no transaction up to %s", b.end)
	case b.end < b.until && again > most:
		b.pause(max(b.until, b.at+again)) // since the next session decodes this again, too
		s.reopen = fmt.Errorf("a transaction is open since before %s", b.restart)
	case b.end == b.until:
		if b.pays(b.until, max(s.identity.Server, cdc.LSN(b.head.Load()))) {
			s.reopen = fmt.Errorf("read up to %s", b.until)
		}
		s.endBulk()
	}
	b.at = max(b.at, b.end)
	s.received = max(s.received, b.at)
	if b.at <= s.dec.Ended || b.at <= s.idle {
		return nil, nil
	}
	s.idle = b.at
	return s.dec.Idle(b.at), nil
}

// endBulk frees the copy.
func (s *Session) endBulk() {
	b := s.bulk
	if s.bulk = nil; b == nil {
		return
	}
	if !b.began.IsZero() { // the server would go on to the end of the call
		limited, cancel := context.WithTimeout(context.Background(), cancelWithin)
		defer cancel()
		_ = b.conn.CancelRequest(limited) // it ends anyway, later
	}
	_ = b.wire.write([]byte{'X', 0, 0, 0, 4}, time.Now().Add(time.Second)) // it ends anyway
	b.wire.kill()
	b.wire.deadlines.forget()
}

const cancelWithin = time.Second

// due returns cdc.ErrReopen if another session would read better: in bulk the next segment, or what the stream has left behind, or by the
// stream what does not pay in bulk.
func (s *Session) due() error {
	c := s.cfg.catchUp
	if s.reopen == nil && s.bulk == nil && !s.dec.InTx && c != nil {
		// A session that begins at flush must come to the same answer, or sessions would follow each other for ever.
		if head := cdc.LSN(c.head.Load()); c.pays(s.received, head) && c.pays(s.flush, head) && s.cfg.noBulk == "" {
			s.reopen = fmt.Errorf("%s behind", size.Bytes(head-s.received).Roughly())
		}
	}
	if s.reopen == nil {
		return nil
	}
	c.read.Store(uint64(s.received))
	return fault.Retry(fmt.Errorf("%w: %w", cdc.ErrReopen, s.reopen))
}

// release frees the copy if a call has not been read for long. What is left is the stream's.
func (s *Session) release(now time.Time) {
	b := s.bulk
	if b == nil || b.began.IsZero() {
		return
	}
	last := b.began
	if b.wire.read.After(last) {
		last = b.wire.read
	}
	if now.Sub(last) > heldSnapshot {
		s.reopen = cmp.Or(s.reopen, fmt.Errorf("nothing was read in bulk for %s", heldSnapshot))
		b.pause(b.until)
		s.endBulk()
	}
}
