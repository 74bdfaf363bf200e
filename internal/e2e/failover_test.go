package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// failoverWorld is a world with a slot that survives a failover, and a standby that keeps a copy of it by itself. The configuration has
// both servers, as operations.md says.
func failoverWorld(t *testing.T, version string) (w *world, primary, standby *testenv.PG) {
	t.Helper()
	w = newWorld(t, version)
	w.source = ", failover: true"
	primary = w.pg
	standby = primary.Standby(t, testenv.Param("sync_replication_slots", "on"))
	w.dsn = fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/shop?sslmode=disable&target_session_attrs=read-write", primary.Port(), standby.Port())
	return w, primary, standby
}

// synchronized waits until the standby has a copy of the slot that survives a promotion, and all WAL, and stops the standby.
func (w *world) synchronized(primary, standby *testenv.PG) {
	w.t.Helper()
	eventually(w.t, 90*time.Second, "the slot is synchronized", func() bool {
		primary.Exec(w.t, primary.DSN("shop"), "SELECT pg_log_standby_snapshot()")
		standby.CatchUp(w.t, primary)
		return standby.Value(w.t, standby.DSN("shop"), "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'walpost' AND synced AND NOT temporary") == "1"
	})
	w.confirms(w.now())
	standby.CatchUp(w.t, primary)
	if err := standby.Stop("fast", time.Minute); err != nil {
		w.t.Fatal(err)
	}
}

// fails ends the primary, and promotes the standby, which lacks what the primary has written since synchronized.
func (w *world) fails(primary, standby *testenv.PG) {
	w.t.Helper()
	if err := primary.Kill(); err != nil {
		w.t.Fatal(err)
	}
	standby.Start(w.t)
	standby.Promote(w.t)
}

// An asynchronous standby usually lacks the last WAL of a primary that dies, and the relay has confirmed it. If no event was in it, nothing is
// lost, and the relay goes on by itself. When the old primary comes back, the relay refuses it.
func TestAPromotedStandbyThatLacksOnlyWALWithoutEventsIsNoGap(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprintf("running %v", running), func(t *testing.T) {
			t.Parallel()
			w, primary, standby := failoverWorld(t, "18")
			r := w.startReady()
			w.arrive(w.insert(100))
			w.synchronized(primary, standby)
			w.exec("CREATE TABLE busy (a text)", "INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 500)")
			lost := w.now()
			w.confirms(lost) // and so is the checkpoint
			if !running {
				w.stopCleanly(r)
			}
			w.fails(primary, standby)
			if at := standby.Value(t, standby.DSN("shop"), "SELECT ($1::text::pg_lsn > pg_current_wal_lsn())::text", lost); at != "true" {
				t.Fatal("the new primary is behind the checkpoint: this says nothing")
			}
			rows := w.insert(20) // where the old primary had something else
			if !running {
				r = w.startReady()
			}
			w.arrive(rows)
			if !strings.Contains(r.log.String(), "the missing WAL had no events") {
				t.Errorf("the log does not say why nothing is lost:\n%s", r.log)
			}
			if n := w.again(); n > 0 {
				t.Errorf("%d events came again", n)
			}
			w.stopCleanly(r)

			primary.Start(t) // it is the first in the DSN
			before := primary.Value(t, primary.DSN("shop"), "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'walpost'")
			r = w.start()
			_, log := w.halted(r, "", "is on timeline 1, but checkpoint", "this is an old primary or an old copy")
			if hint := hintOf(log); !strings.Contains(hint, "remove the old primary from source.dsn") {
				t.Errorf("the hint: %s", hint)
			}
			if after := primary.Value(t, primary.DSN("shop"), "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'walpost'"); after != before {
				t.Errorf("the slot of the old primary moved from %s to %s", before, after)
			}
			w.move(standby)
			w.startReady()
			w.arrive(w.insert(10))
			if n := w.again(); n > 0 {
				t.Errorf("%d events came again", n)
			}
		})
	}
}

// The standby lacks events that are delivered. A person has to know, because consumers have them. But the slot has all that the new primary
// has, so accepting the gap leaves out nothing, also of what was written before.
func TestAPromotedStandbyThatLacksEventsButHasTheSlotGivesEverythingItHas(t *testing.T) {
	t.Parallel()
	w, primary, standby := failoverWorld(t, "17")
	w.extra += "delivery: {guarantee: exactly_once}\n"
	r := w.startReady()
	w.arrive(w.insert(100))
	w.synchronized(primary, standby)
	lost := w.insert(20)
	w.confirms(w.now()) // by the record in their own Kafka transaction: a later one would know more
	w.arrive(lost)
	r.kill()
	w.fails(primary, standby)
	w.move(standby)
	rows := w.insert(20) // before anybody accepts anything
	r = w.start()
	_, log := w.halted(r, "", "history left timeline 1 at", "no event of this server is missing", "consumers have events that this server lacks")
	hint := hintOf(log)
	token := tokenInHint.FindStringSubmatch(hint)
	if token == nil || strings.Contains(hint, "walpost verify") || strings.Contains(hint, "close-gap") {
		t.Fatalf("the hint: %s", hint)
	}
	if code, out := w.command("recover", "--yes"); code != 3 || !strings.Contains(out, "no event of this server is missing") {
		t.Errorf("recover: code %d\n%s", code, out)
	}
	before := w.again()
	r = w.startReady("--accept-gap=" + token[1])
	w.arrive(rows)
	w.arrive(w.insert(10))
	if n := w.again() - before; n > 0 {
		t.Errorf("%d events came again", n)
	}
	if _, body := r.get("/api/status"); strings.Contains(body, token[1]) {
		t.Errorf("a gap without missing events is still open: %s", body)
	}
}
