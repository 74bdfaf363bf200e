package replication

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/testenv"
)

// A step of a vigil is a look, so long after the one before.
type step struct {
	after time.Duration
	h     holder
}

func TestOnlyAHolderThatBreaksItsPromiseIsEnded(t *testing.T) {
	silent := holder{PID: 7, Started: "noon", Name: promising("walpost", "other"), Waits: "WalSenderMain", Replied: "12:00", Permitted: true}
	changed := func(change func(h *holder)) holder {
		h := silent
		change(&h)
		return h
	}
	regular := func(n int, h holder) (steps []step) {
		for range n {
			steps = append(steps, step{time.Second, h})
		}
		return steps
	}
	const needed = 3
	for _, c := range []struct {
		name  string
		steps []step
		ended int // by which step, from 1; 0 for none
	}{
		{"silent", regular(9, silent), needed + 1}, // the first look has nothing to compare with
		{"named by another version of Postgres", regular(9, changed(func(h *holder) { h.Waits = "WalSenderWaitForWal" })), needed + 1},
		{"silent since it began", regular(9, changed(func(h *holder) { h.Replied = "" })), needed + 1},
		{"reports", append(regular(3, silent), append(regular(3, changed(func(h *holder) { h.Replied = "12:01" })), regular(3, silent)...)...), 0},
		{"another session", append(regular(3, silent), regular(3, changed(func(h *holder) { h.Started = "later" }))...), 0},
		{"no promise", regular(20, changed(func(h *holder) { h.Name = "walpost" })), 0},
		{"busy", regular(20, changed(func(h *holder) { h.Waits = "" })), 0},
		{"busy in between", append(regular(3, silent), append(regular(1, changed(func(h *holder) { h.Waits = "ReorderBufferWrite" })), regular(2, silent)...)...), 0},
		{"nothing may be seen", regular(20, changed(func(h *holder) { h.Replied, h.Permitted = "", false })), 0},
		{"this process stood still", append(regular(3, silent), append([]step{{lookGap*time.Second + 1, silent}}, regular(2, silent)...)...), 0},
		{"one's own", []step{{0, changed(func(h *holder) { h.Name, h.Waits, h.Permitted = promising("walpost", "mine"), "", false })}}, 1},
		{"none", regular(20, holder{Permitted: true}), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, now, ended := vigil{id: "mine", every: time.Second, needed: needed}, time.Now(), 0
			for i, s := range c.steps {
				now = now.Add(s.after)
				if v.saw(s.h, now) && ended == 0 {
					ended = i + 1
				}
			}
			if ended != c.ended {
				t.Errorf("ended by look %d, want %d", ended, c.ended)
			}
		})
	}
}

// Two relays that cannot report in time must not end each other's sessions for ever.
func TestEachEndedHolderDoublesThePatience(t *testing.T) {
	p, now := newPatience(), time.Now()
	for want := silentLooks; want < mostLooks; want *= 2 {
		if got := p.looks(now); got != want {
			t.Fatalf("%d looks, want %d", got, want)
		}
		p.spent(now)
	}
	for range 100 {
		p.spent(now)
	}
	if got := p.looks(now); got != mostLooks {
		t.Errorf("%d looks after many, want %d", got, mostLooks)
	}
	if got := p.looks(now.Add(forgive + 1)); got != silentLooks {
		t.Errorf("%d looks after a while, want %d", got, silentLooks)
	}
}

func TestALongNameKeepsThePromise(t *testing.T) {
	name := promising(strings.Repeat("x", 100), "0a1b2c3d")
	if id, ok := (&holder{Name: name}).promises(); len(name) > 63 || !ok || id != "0a1b2c3d" {
		t.Errorf("%q (%d bytes) promises %v by %q", name, len(name), ok, id)
	}
}

// A reader is a client of a slot that only reports.
type reader struct {
	conn *pgconn.PgConn
	hush chan struct{} // closed: it reports no more
	done chan struct{}
}

// reads takes the slot under an application_name.
func (w *world) reads(name string) *reader {
	w.Helper()
	conn, err := pgconn.Connect(w.Context(), w.dsn+"&replication=database")
	if err != nil {
		w.Fatal(err)
	}
	if _, err := conn.Exec(w.Context(), "SET application_name = "+pgname.QuoteLiteral(name)).ReadAll(); err != nil {
		w.Fatal(err)
	}
	err = pglogrepl.StartReplication(w.Context(), conn, w.cfg.Slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + w.cfg.Publication + "'"},
	})
	if err != nil {
		w.Fatal(err)
	}
	r := &reader{conn: conn, hush: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for {
			select {
			case <-r.hush:
				return
			case <-time.After(20 * time.Millisecond):
				_ = pglogrepl.SendStandbyStatusUpdate(context.Background(), conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: 1})
			}
		}
	}()
	w.Cleanup(func() { r.silence(); _ = conn.Close(context.Background()) })
	return r
}

func (r *reader) silence() {
	select {
	case <-r.hush:
	default:
		close(r.hush)
	}
	<-r.done
}

// standby opens a session that looks fast, and counts its looks.
func (w *world) standby(src *Source) (sess *Session, looks *atomic.Int64) {
	w.Helper()
	sess, err := src.Open(w.Context(), true, false)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = sess.Close(context.Background()) })
	looks = new(atomic.Int64)
	look := sess.cfg.watch.look
	sess.cfg.watch.every = 50 * time.Millisecond
	sess.cfg.watch.look = func(ctx context.Context) (holder, error) {
		defer looks.Add(1)
		return look(ctx)
	}
	return sess, looks
}

// starting runs Start beside the test.
func starting(ctx context.Context, sess *Session) <-chan error {
	started := make(chan error, 1)
	go func() { started <- sess.Start(ctx, sess.Identity().SlotFound.Confirmed) }()
	return started
}

// waits fails the test if Start returns before so many looks.
func (w *world) waits(started <-chan error, looks *atomic.Int64, n int64) {
	w.Helper()
	for looks.Load() < n {
		select {
		case err := <-started:
			w.Fatalf("Start returned after %d looks: %v\n%s", looks.Load(), err, w.logs)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (w *world) gets(started <-chan error) {
	w.Helper()
	select {
	case err := <-started:
		if err != nil {
			w.Fatalf("Start: %v", err)
		}
	case <-time.After(time.Minute):
		w.Fatal("the slot is still waited for")
	}
}

func TestAReaderIsEndedWhenItBreaksItsPromise(t *testing.T) {
	t.Parallel()
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		first, _ := w.standby(w.source())
		_ = first.Close(t.Context())
		r := w.reads(promising("walpost", "other"))
		sess, looks := w.standby(w.source())
		started := starting(t.Context(), sess)
		w.waits(started, looks, 3*silentLooks) // it reports
		r.silence()
		w.gets(started)
		if !strings.Contains(w.logs.String(), "because its client has been silent") {
			t.Errorf("the log:\n%s", w.logs)
		}
		for { // what it was sent before
			if _, err := r.conn.ReceiveMessage(t.Context()); err != nil {
				break
			}
		}
		name := w.value("SELECT application_name FROM pg_stat_replication JOIN pg_replication_slots ON active_pid = pid WHERE slot_name = '" + w.cfg.Slot + "'")
		if id, ok := (&holder{Name: name}).promises(); !ok || id != sess.patience().id {
			t.Errorf("the new reader is named %q", name)
		}
	})
}

// Who did not promise anything, and who cannot be seen, is waited for.
func TestAReaderThatMayBeAliveIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ reader, role string }{
		"another program":      {reader: "pg_recvlogical"},
		"an older version":     {reader: "walpost"},
		"an unprivileged role": {reader: promising("walpost", "other"), role: "blind"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, "17")
			w := newWorld(t, pg, outboxTable)
			first, _ := w.standby(w.source())
			_ = first.Close(t.Context())
			if c.role != "" {
				role := fmt.Sprintf("%s_%s", c.role, w.cfg.Slot)
				w.exec("CREATE ROLE "+role+" LOGIN REPLICATION PASSWORD 'x'", "GRANT SELECT ON outbox TO "+role)
				t.Cleanup(func() { pg.Exec(t, w.dsn, "DROP OWNED BY "+role, "DROP ROLE "+role) })
				w.cfg.DSN = conf.Secret(strings.Replace(w.dsn, "postgres://postgres@", "postgres://"+role+":x@", 1))
			}
			r := w.reads(c.reader)
			r.silence()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			sess, looks := w.standby(w.source())
			started := starting(ctx, sess)
			w.waits(started, looks, 3*silentLooks)
			if hints := strings.Contains(w.logs.String(), "GRANT pg_monitor TO"); hints != (c.role != "") {
				t.Errorf("the log:\n%s", w.logs)
			}
			_ = r.conn.Close(t.Context())
			w.gets(started)
			_ = sess.Close(t.Context())
		})
	}
}

// A process that has lost its connection, where the server has not noticed, gets its slot back at the first look.
func TestAFormerSessionOfTheSameProcessIsEndedAtOnce(t *testing.T) {
	t.Parallel()
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		src := w.source()
		lost, _ := w.standby(src)
		w.gets(starting(t.Context(), lost))
		sess, looks := w.standby(src)
		w.gets(starting(t.Context(), sess))
		if n := looks.Load(); n > silentLooks {
			t.Errorf("it took %d looks", n)
		}
		if got := src.patience.looks(time.Now()); got != silentLooks {
			t.Errorf("the next silent reader has %d looks, want %d", got, silentLooks)
		}
		if !strings.Contains(w.logs.String(), "ended the server process of this relay's former session") {
			t.Errorf("the log:\n%s", w.logs)
		}
	})
}
