package replication

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// When may a waiting relay end the walsender that has the slot?
//
// A relay whose machine is gone, or whose network is cut, leaves its walsender behind, and the slot with it, until
// wal_sender_timeout (60 s by default). So a relay that waits looks at the walsender, and ends it if the client is gone.
// Ending it harms nobody's data: it is what wal_sender_timeout does, only earlier. If the client was alive after all, it
// loses its session, and the new reader repeats what that client has sent and not yet written down, in order. But two
// relays that end each other's sessions deliver nothing. So all of this must hold:
//
//   - The client promised to report every second (reports). Other programs, and older versions, report every 10 s or when
//     they please.
//   - The walsender listens, in each of many looks in a row: it waits for the client or for WAL, where it takes every
//     report at once. One that decodes a large transaction takes none for a long time.
//   - The time in the client's newest report is the same in all these looks. It is the client's clock, so it is compared
//     only with itself.
//   - The looks have come regularly. If this process, or the server, stood still between two of them, the client
//     may have stood still with it, and counting starts over.
//
// After each session that this process has ended, it takes twice as many looks for a while (patience). So a row that
// keeps every reader busy for longer than the client has is read by one of them in the end.
//
// A session that this process has lost itself has no client for certain, and is ended at once.
const (
	lookEvery   = 250 * time.Millisecond
	lookGap     = 4  // times as long between two looks is no regular look
	silentLooks = 12 // 3 s, in which three reports are due
	mostLooks   = silentLooks << 4
	forgive     = 10 * time.Minute
)

// reportsEvery is what reports promises.
const reportsEvery = time.Second

// reports is in the application_name of a stream whose client sends a status at least once a second. The id of the
// process that reads it follows.
const reports = ", reports every second, "

// A holder is the server process that has the slot, as the catalog shows it. PID is 0 if there is none.
type holder struct {
	PID       int32
	Started   string // when the connection began
	Client    string // its address
	Name      string // application_name
	Waits     string // wait_event
	Replied   string // the client's clock in its newest report; "" if there was none
	Permitted bool   // the role may see Replied: otherwise it is always ""
}

// holderQuery gives one row, whatever there is.
func holderQuery(slot string) string {
	return `SELECT coalesce(s.active_pid, 0) AS pid, coalesce(a.backend_start::text, '') AS started, coalesce(host(a.client_addr), '') AS client,
 coalesce(a.application_name, '') AS name, coalesce(a.wait_event, '') AS waits, coalesce(r.reply_time::text, '') AS replied,
 pg_has_role('pg_read_all_stats', 'USAGE') AS permitted
 FROM (SELECT) one LEFT JOIN pg_replication_slots s ON s.slot_name = ` + pgname.QuoteLiteral(slot) + `
 LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid`
}

// endQuery ends a holder, if it still is the holder and has not reported since.
func endQuery(slot string, h *holder) string {
	return fmt.Sprintf(`SELECT coalesce(bool_or(pg_terminate_backend(h.pid)), false) AS ended FROM (%s) h
 WHERE h.pid = %d AND h.started = %s AND h.replied = %s`, holderQuery(slot), h.PID, pgname.QuoteLiteral(h.Started), pgname.QuoteLiteral(h.Replied))
}

// promises reports whether the client reports at least once a second, and by which process.
func (h *holder) promises() (id string, ok bool) {
	_, id, ok = strings.Cut(h.Name, reports)
	return id, ok
}

// listens reports whether the walsender waits where it takes every report at once. The names differ between versions
// in the case of letters.
func (h *holder) listens() bool {
	switch strings.ToLower(h.Waits) {
	case "walsendermain", "walsenderwaitforwal", "walsenderwritedata", "waitforstandbyconfirmation":
		return true
	}
	return false
}

// promising is the application_name of a stream of the process id. Postgres cuts longer names at 63 bytes.
func promising(name, id string) string {
	const most = 63
	return name[:min(len(name), most-len(reports)-len(id))] + reports + id
}

// A vigil counts the looks in which the holder of the slot was silent.
type vigil struct {
	id     string        // of this process
	every  time.Duration // between looks
	needed int           // looks

	newest holder
	at     time.Time // of the newest look
	looks  int       // in a row, with the same silent holder
}

// saw takes a look, and reports whether the holder may be ended.
func (v *vigil) saw(h holder, now time.Time) bool {
	id, promises := h.promises()
	same := h.PID == v.newest.PID && h.Started == v.newest.Started && h.Replied == v.newest.Replied
	if regular := now.Sub(v.at) <= lookGap*v.every; !same || !regular || !promises || !h.listens() || !h.Permitted {
		v.looks = 0
	} else {
		v.looks++
	}
	v.newest, v.at = h, now
	return h.PID != 0 && promises && id == v.id || v.looks >= v.needed
}

// A patience says how many looks a silent holder has. It doubles with each one that was ended, until none was for a while.
type patience struct {
	id string // of this process, in the names of its streams

	mu    sync.Mutex
	ended int       // guarded by mu
	last  time.Time // guarded by mu
}

func newPatience() *patience { return &patience{id: fmt.Sprintf("%08x", rand.Uint32())} }

func (p *patience) looks(now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.last) > forgive {
		p.ended = 0
	}
	return min(silentLooks<<min(p.ended, 10), mostLooks)
}

func (p *patience) spent(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended++
	p.last = now
}

// A watcher looks at the holder of one slot, and ends it.
type watcher struct {
	every time.Duration // between looks
	look  func(ctx context.Context) (holder, error)
	end   func(ctx context.Context, h *holder) (bool, error)
}

// watcherOn is a watcher that uses sql, which nothing else uses until the session has started.
func watcherOn(sql *pgconn.PgConn, slot string) watcher {
	return watcher{
		every: lookEvery,
		look: func(ctx context.Context) (holder, error) {
			return pg.Row[holder](ctx, sql, "look who has slot "+slot, holderQuery(slot))
		},
		end: func(ctx context.Context, h *holder) (bool, error) {
			got, err := pg.Row[struct{ Ended bool }](ctx, sql, "end the process that has slot "+slot, endQuery(slot, h))
			return got.Ended, err
		},
	}
}
