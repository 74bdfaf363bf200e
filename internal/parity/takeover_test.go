//go:build linux || darwin

package parity

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// What docs/migrate.md says of the way from Debezium to walpost and back, step by step, with a real Debezium.
func TestTakeoverOfDebeziumsSlot(t *testing.T) {
	s := &stage{kafka: testenv.Kafka(t), walpost: filepath.Join(t.TempDir(), "walpost")}
	s.worker = Connect(t, s.kafka, map[string]string{"offset.flush.interval.ms": "4000"})
	build := exec.Command("go", "build", "-o", s.walpost, "github.com/walpost/walpost/cmd/walpost")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build walpost: %v\n%s", err, out)
	}
	t.Run("while nobody dies", func(t *testing.T) {
		t.Run("a clean stop repeats the last transaction", func(t *testing.T) { t.Parallel(); cleanStop(t, s) })
		t.Run("with heartbeats nothing is repeated", func(t *testing.T) { t.Parallel(); heartbeats(t, s) })
		t.Run("a converted configuration makes no slot", func(t *testing.T) { t.Parallel(); noNewSlot(t, s) })
		for _, c := range waysBack {
			t.Run("back: "+c.name, func(t *testing.T) { t.Parallel(); wayBack(t, s, c) })
		}
	})
	t.Run("there and back again under load", func(t *testing.T) { thereAndBackAgain(t, s) })
}

// The stored offset belongs to a row, and only the commit before that row is confirmed: so a clean stop leaves exactly the last
// transaction unconfirmed, however long the flush interval is.
func cleanStop(t *testing.T, s *stage) {
	k := s.takeover(t, nil)
	k.debezium()
	k.arrive(k.insert(100))
	s.worker.Pause(t, k.slot)
	if k.free() {
		t.Error("a paused connector has let go of its slot")
	}
	s.worker.Resume(t, k.slot)
	k.arrive(k.insert(20))
	k.arrive(k.insert(10))
	s.worker.StopConnector(t, k.slot)
	if !k.free() {
		t.Error("a stopped connector holds its slot")
	}
	if at, stored := k.confirmed(), k.stored("lsn_commit"); at != stored {
		t.Errorf("the slot is confirmed up to %s, and lsn_commit of the stored offset is %s", at, stored)
	}
	between := k.insert(5)
	k.convert()
	if out := k.check(); !strings.Contains(out, "also publishes delete") {
		t.Errorf("check says nothing of a publication with deletes:\n%s", out)
	}
	end := k.run()
	k.arrive(between)
	k.arrive(k.insert(5))
	if n := k.again(); n != 10 {
		t.Errorf("%d events came twice, want the 10 of the last transaction", n)
	}
	// What was repeated has another header __debezium.context.runId, so it isn't the repetition of a restart.
	if code, out := k.command("verify"); code != 1 || !strings.Contains(out, "DIFFERENCE duplicate: 10 ") || !strings.Contains(out, "differences: 10, not judged: 0") {
		t.Errorf("verify after events were repeated: exit code %d\n%s", code, out)
	}
	k.stopCleanly(end)
	k.sameBytes()
}

// A heartbeat is a record behind the commit, whose offset confirms that.
func heartbeats(t *testing.T, s *stage) {
	k := s.takeover(t, map[string]string{"heartbeat.interval.ms": "500"})
	s.kafka.CreateTopic(t, "__debezium-heartbeat."+k.options["topic.prefix"], 1, nil)
	k.debezium()
	k.arrive(k.insert(100))
	before := k.now()
	k.arrive(k.insert(10))
	k.eventually("a heartbeat stores the commit behind the last row", func() bool { return k.stored("lsn_commit") >= k.stored("lsn") && k.confirmed() > before })
	t.Logf("lsn %s, lsn_proc %s, lsn_commit %s, confirmed %s", k.stored("lsn"), k.stored("lsn_proc"), k.stored("lsn_commit"), k.confirmed())
	s.worker.StopConnector(t, k.slot)
	between := k.insert(5)
	k.convert()
	k.check()
	end := k.run()
	k.arrive(between)
	if code, out := k.command("verify"); code != 0 || !strings.Contains(out, "differences: 0, not judged: 0") {
		t.Errorf("verify of Debezium's and walpost's records: exit code %d\n%s", code, out)
	}
	k.stopCleanly(end)
	if n := k.again(); n > 0 {
		t.Errorf("%d events came twice", n)
	}
}

// noNewSlot takes the slot away: with a new one, everything since the connector's last flush would be missing.
func noNewSlot(t *testing.T, s *stage) {
	k := s.takeover(t, map[string]string{"publication.autocreate.mode": "all_tables"})
	k.debezium()
	k.arrive(k.insert(10))
	s.worker.StopConnector(t, k.slot)
	k.convert()
	if out := k.check(); !strings.Contains(out, "warn") {
		t.Errorf("check says nothing of a publication for all tables:\n%s", out)
	}
	k.exec("SELECT pg_drop_replication_slot('" + k.slot + "')")
	for _, command := range []string{"check", "run"} {
		if code, out := k.command(command); code == 0 || !strings.Contains(out, k.slot) {
			t.Errorf("%s without the slot: exit code %d\n%s", command, code, out)
		}
	}
	if n := k.value("SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", k.slot); n != "0" {
		t.Error("a slot was made")
	}
}

// A way back to Debezium after walpost was stopped.
type way struct {
	name, strategy string
	moved          bool   // restart_lsn has surely gone beyond the stored offset, as it does within minutes; else it may have
	reset          bool   // the stored offset is removed
	mode           string // snapshot.mode
	fails          string // the task, with this
	repeats        bool   // every row of the table
}

const noLonger = "no longer available on the server"

var waysBack = []way{
	{name: "trust_slot", strategy: "trust_slot", moved: true, mode: "no_data"},
	{name: "trust_greater_lsn", strategy: "trust_greater_lsn", moved: true, mode: "no_data"},
	{name: "no_validation", strategy: "no_validation", moved: true, mode: "no_data", fails: noLonger},
	{name: "no_validation at once", strategy: "no_validation", mode: "no_data", fails: noLonger},
	{name: "trust_offset", strategy: "trust_offset", moved: true, mode: "no_data", fails: noLonger},
	{name: "trust_offset at once", strategy: "trust_offset", mode: "no_data", fails: noLonger},
	{name: "offset removed, no_data", strategy: "no_validation", moved: true, reset: true, mode: "no_data"},
	{name: "offset removed, initial", strategy: "no_validation", moved: true, reset: true, mode: "initial", repeats: true},
}

func wayBack(t *testing.T, s *stage, c way) {
	k := s.takeover(t, nil)
	k.debezium()
	all := k.insert(10)
	k.arrive(all)
	s.worker.StopConnector(t, k.slot)
	k.convert()
	k.check()
	end := k.run()
	all = append(all, k.insert(10)...)
	for range 3 {
		if c.moved { // a checkpoint logs what restart_lsn moves by
			k.exec("CHECKPOINT")
		}
		row := k.insert(1)
		all = append(all, row...)
		k.arrive(row)
		now := k.now()
		k.eventually("confirmed up to "+now.String(), func() bool { return k.confirmed() >= now })
	}
	k.stopCleanly(end)
	before := k.again()
	left := k.insert(10)
	gone := k.insert(1)
	k.exec("DELETE FROM outbox WHERE id = '" + gone[0] + "'")
	if c.reset {
		s.worker.ResetOffsets(t, k.slot)
	}
	s.worker.Delete(t, k.slot)
	k.options["offset.mismatch.strategy"], k.options["snapshot.mode"] = c.strategy, c.mode
	s.worker.Put(t, k.slot, k.options)
	if failed := k.streamsOrFails(); failed != "" || c.moved && c.fails != "" {
		if c.fails == "" || !strings.Contains(failed, c.fails) {
			t.Errorf("the task fails with %q, want %q", failed, c.fails)
		}
		// Nothing is lost by that: with the right strategy it goes on.
		s.worker.Delete(t, k.slot)
		k.options["offset.mismatch.strategy"] = "trust_slot"
		s.worker.Put(t, k.slot, k.options)
	}
	s.worker.Streams(t, k.slot, k.dsn, k.slot)
	k.arrive(left)
	k.arrive(k.insert(10))
	arrived, again := k.ledger.Seen(gone...), k.again()-before
	switch {
	case c.repeats && (arrived != 0 || again < len(all)):
		t.Errorf("%d events came twice, want the %d of the table; of 1 that was deleted %d arrived, want 0", again, len(all), arrived)
	case !c.repeats && (arrived != 1 || again != 0):
		t.Errorf("%d events came twice, want 0; of 1 that was deleted %d arrived", again, arrived)
	}
	k.sameBytes()
	s.worker.Delete(t, k.slot)
}

// thereAndBackAgain is the whole history of one outbox whose service never stops writing.
func thereAndBackAgain(t *testing.T, s *stage) {
	k := s.takeover(t, nil)
	k.debezium()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	service := &shop.Shop{DSN: k.dsn, Writers: 2, MaxRows: 10, Pause: 20 * time.Millisecond, Seed: 4}
	wrote := make(chan error, 1)
	go func() { wrote <- service.Run(ctx) }()
	more := func(what string) {
		t.Helper()
		from := k.seen()
		k.eventually("events arrive: "+what, func() bool { return k.seen() > from+200 })
		t.Logf("%s: %d events, %d of them again", what, k.seen(), k.again())
	}
	more("Debezium")
	s.worker.StopConnector(t, k.slot)
	k.convert()
	k.check()
	end := k.run()
	more("walpost after a clean stop")
	at := k.stopCleanly(end)
	again := k.again()

	k.debezium("offset.mismatch.strategy", "trust_slot")
	more("Debezium after a clean stop")
	// The checkpoint knows how far the transaction is delivered that the stop broke off; Debezium does not, and begins it anew.
	if n := k.again() - again; n >= service.MaxRows {
		t.Errorf("%d events came twice behind walpost's clean stop, of transactions of at most %d", n, service.MaxRows)
	}
	k.eventually("Debezium confirms", func() bool { return k.confirmed() != at })
	more("Debezium before its death")
	if err := s.worker.Kill(); err != nil {
		t.Fatal(err)
	}
	k.eventually("the slot is free", k.free)
	token := k.refused("it was advanced, created again or used by another reader", at.String())
	end = k.run("--accept-gap=" + token)
	more("walpost after Connect was killed")
	end(syscall.SIGKILL)

	k.eventually("the slot is free", k.free)
	at = k.confirmed()
	if err := s.worker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.debezium()
	more("Debezium after walpost was killed")
	k.eventually("Debezium confirms", func() bool { return k.confirmed() != at })
	s.worker.StopConnector(t, k.slot)
	token = k.refused("used by another reader")
	end = k.run("--accept-gap=" + token)
	more("walpost once more")
	cancel()
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	rep := k.settled()
	if !rep.OK() || rep.Duplicates == 0 {
		t.Errorf("the whole history: %s", &rep)
	}
	k.stopCleanly(end)
}
