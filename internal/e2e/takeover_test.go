//go:build linux || darwin

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// What docs/debezium.md says of the way from Debezium to walpost and back, step by step, with a real Debezium.
func TestTakeoverOfDebeziumsSlot(t *testing.T) {
	t.Parallel()
	kafka := testenv.Kafka(t)
	worker := testenv.Connect(t, kafka, map[string]string{"offset.flush.interval.ms": "4000"})
	t.Run("while nobody dies", func(t *testing.T) {
		t.Run("a clean stop repeats the last transaction", func(t *testing.T) { t.Parallel(); cleanStop(t, kafka, worker) })
		t.Run("with heartbeats nothing is repeated", func(t *testing.T) { t.Parallel(); heartbeats(t, kafka, worker) })
		t.Run("a converted configuration makes no slot", func(t *testing.T) { t.Parallel(); noNewSlot(t, kafka, worker) })
		for _, c := range waysBack {
			t.Run("back: "+c.name, func(t *testing.T) { t.Parallel(); wayBack(t, kafka, worker, c) })
		}
	})
	t.Run("there and back again under load", func(t *testing.T) { thereAndBackAgain(t, kafka, worker) })
}

// The stored offset belongs to a row, and only the commit before that row is confirmed: so a clean stop leaves exactly the last
// transaction unconfirmed, however long the flush interval is.
func cleanStop(t *testing.T, kafka *testenv.KafkaCluster, worker *testenv.ConnectWorker) {
	k := newTakeover(t, kafka, worker, nil)
	k.debezium()
	k.arrive(k.insert(100))
	worker.Pause(t, k.connector)
	if k.free() {
		t.Error("a paused connector has let go of its slot")
	}
	worker.Resume(t, k.connector)
	k.arrive(k.insert(20))
	k.arrive(k.insert(10))
	worker.StopConnector(t, k.connector)
	if !k.free() {
		t.Error("a stopped connector holds its slot")
	}
	if at, stored := k.position(), k.stored("lsn_commit"); at != stored {
		t.Errorf("the slot is confirmed up to %s, and lsn_commit of the stored offset is %s", at, stored)
	}
	between := k.insert(5)
	k.convert()
	if out := k.check(); !strings.Contains(out, "also publishes delete") {
		t.Errorf("check says nothing of a publication with deletes:\n%s", out)
	}
	r := k.startReady()
	k.arrive(between)
	k.arrive(k.insert(5))
	if n := k.again(); n != 10 {
		t.Errorf("%d events came twice, want the 10 of the last transaction", n)
	}
	k.stopCleanly(r)
	k.sameBytes()
}

// A heartbeat is a record behind the commit, whose offset confirms that.
func heartbeats(t *testing.T, kafka *testenv.KafkaCluster, worker *testenv.ConnectWorker) {
	k := newTakeover(t, kafka, worker, map[string]string{"heartbeat.interval.ms": "500"})
	kafka.CreateTopic(t, "__debezium-heartbeat."+k.options["topic.prefix"], 1, nil)
	k.debezium()
	k.arrive(k.insert(100))
	before := k.now()
	k.arrive(k.insert(10))
	eventually(t, 60*time.Second, "a heartbeat stores the commit behind the last row", func() bool { return k.stored("lsn_commit") >= k.stored("lsn") && k.beyond(before) })
	t.Logf("lsn %s, lsn_proc %s, lsn_commit %s, confirmed %s", k.stored("lsn"), k.stored("lsn_proc"), k.stored("lsn_commit"), k.confirmed())
	worker.StopConnector(t, k.connector)
	between := k.insert(5)
	k.convert()
	k.check()
	r := k.startReady()
	k.arrive(between)
	k.stopCleanly(r)
	if n := k.again(); n > 0 {
		t.Errorf("%d events came twice", n)
	}
}

// noNewSlot takes the slot away: with a new one, everything since the connector's last flush would be missing.
func noNewSlot(t *testing.T, kafka *testenv.KafkaCluster, worker *testenv.ConnectWorker) {
	k := newTakeover(t, kafka, worker, map[string]string{"publication.autocreate.mode": "all_tables"})
	k.debezium()
	k.arrive(k.insert(10))
	worker.StopConnector(t, k.connector)
	k.convert()
	if out := k.check(); !strings.Contains(out, "warn") {
		t.Errorf("check says nothing of a publication for all tables:\n%s", out)
	}
	k.exec("SELECT pg_drop_replication_slot('" + k.slot + "')")
	k.extra = "halt_linger: 0s\n"
	for _, command := range []string{"check", "run"} {
		if code, out := k.command(command); code == 0 || !strings.Contains(out, k.slot) {
			t.Errorf("%s without the slot: exit code %d\n%s", command, code, out)
		}
	}
	if n := k.pg.Value(t, k.dsn, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", k.slot); n != "0" {
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

func wayBack(t *testing.T, kafka *testenv.KafkaCluster, worker *testenv.ConnectWorker, c way) {
	k := newTakeover(t, kafka, worker, nil)
	k.debezium()
	all := k.insert(10)
	k.arrive(all)
	worker.StopConnector(t, k.connector)
	k.convert()
	k.check()
	r := k.startReady()
	all = append(all, k.insert(10)...)
	for range 3 {
		if c.moved { // a checkpoint logs what restart_lsn moves by
			k.exec("CHECKPOINT")
		}
		row := k.insert(1)
		all = append(all, row...)
		k.arrive(row)
		k.confirms(k.now())
	}
	k.stopCleanly(r)
	before := k.again()
	left := k.insert(10)
	gone := k.insert(1)
	k.exec("DELETE FROM outbox WHERE id = '" + gone[0] + "'")
	if c.reset {
		worker.ResetOffsets(t, k.connector)
	}
	worker.Delete(t, k.connector)
	k.options["offset.mismatch.strategy"], k.options["snapshot.mode"] = c.strategy, c.mode
	worker.Put(t, k.connector, k.options)
	if failed := k.streamsOrFails(); failed != "" || c.moved && c.fails != "" {
		if c.fails == "" || !strings.Contains(failed, c.fails) {
			t.Errorf("the task fails with %q, want %q", failed, c.fails)
		}
		// Nothing is lost by that: with the right strategy it goes on.
		worker.Delete(t, k.connector)
		k.options["offset.mismatch.strategy"] = "trust_slot"
		worker.Put(t, k.connector, k.options)
	}
	worker.Streams(t, k.connector, k.dsn, k.slot)
	k.arrive(left)
	k.arrive(k.insert(10))
	arrived, again := k.arrived(gone), k.again()-before
	switch {
	case c.repeats && (arrived != 0 || again < len(all)):
		t.Errorf("%d events came twice, want the %d of the table; of 1 that was deleted %d arrived, want 0", again, len(all), arrived)
	case !c.repeats && (arrived != 1 || again != 0):
		t.Errorf("%d events came twice, want 0; of 1 that was deleted %d arrived", again, arrived)
	}
	k.sameBytes()
	worker.Delete(t, k.connector)
}

// thereAndBackAgain is the whole history of one outbox whose service never stops writing.
func thereAndBackAgain(t *testing.T, kafka *testenv.KafkaCluster, worker *testenv.ConnectWorker) {
	k := newTakeover(t, kafka, worker, nil)
	k.extra = halting
	k.debezium()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	service := &shop.Shop{DSN: k.dsn, Writers: 2, MaxRows: 10, Pause: 20 * time.Millisecond, Seed: 4}
	wrote := make(chan error, 1)
	go func() { wrote <- service.Run(ctx) }()
	more := func(what string) {
		t.Helper()
		from := k.seen()
		eventually(t, 60*time.Second, "events arrive: "+what, func() bool { return k.seen() > from+200 })
		t.Logf("%s: %d events, %d of them again", what, k.seen(), k.again())
	}
	more("Debezium")
	worker.StopConnector(t, k.connector)
	k.convert()
	k.check()
	r := k.startReady()
	more("walpost after a clean stop")
	at := k.stopCleanly(r)
	again := k.again()

	k.debezium("offset.mismatch.strategy", "trust_slot")
	more("Debezium after a clean stop")
	// The checkpoint knows how far the transaction is delivered that the stop broke off; Debezium does not, and begins it anew.
	if n := k.again() - again; n >= service.MaxRows {
		t.Errorf("%d events came twice behind walpost's clean stop, of transactions of at most %d", n, service.MaxRows)
	}
	eventually(t, 60*time.Second, "Debezium confirms", func() bool { return k.confirmed() != at })
	more("Debezium before its death")
	if err := worker.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the slot is free", k.free)
	token := k.refused([]string{"it was advanced, made again or used by another reader", at})
	r = k.startReady("--accept-gap=" + token)
	more("walpost after Connect was killed")
	r.kill()

	eventually(t, 30*time.Second, "the slot is free", k.free)
	at = k.confirmed()
	if err := worker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.debezium()
	more("Debezium after walpost was killed")
	eventually(t, 60*time.Second, "Debezium confirms", func() bool { return k.confirmed() != at })
	worker.StopConnector(t, k.connector)
	token = k.refused([]string{"used by another reader"})
	r = k.startReady("--accept-gap=" + token)
	more("walpost once more")
	cancel()
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	rep := k.settled()
	if !rep.OK() || rep.Duplicates == 0 {
		t.Errorf("the whole history: %s", &rep)
	}
	k.stopCleanly(r)
}
