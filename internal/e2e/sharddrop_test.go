package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// The slot of the relay before the shards is dropped before that relay has delivered everything. The shards do not begin at their own
// slots: what they miss is a gap that a person closes. A slot that is left over from a trial is not taken for that of a relay.
func TestASlotDroppedBeforeTheTakeoverIsAGap(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	slot := strings.ReplaceAll(unique("early"), "-", "_")
	s.source = fmt.Sprintf(", slot: %[1]s, publication: %[1]s, snapshot: never, order_column: seq, time_column: created_at", slot)
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD seq bigint GENERATED ALWAYS AS IDENTITY")
	write := func(tag string) { <-s.load(&shop.Shop{Writers: 2, Seed: 5, Tag: tag, Rows: 60}).done }
	drop := func(name string) { pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('"+name+"')") }
	all := func(start func(args ...string) *relay) (shards []*relay) {
		return []*relay{start("--shard", "1/2"), start("--shard", "2/2")}
	}

	old := s.startReady()
	w := s.follow()
	write("a")
	s.noLoss(w, time.Minute)
	old.stopsClean()
	write("b")

	trial := slot + "_1_of_3"
	pg.Exec(t, s.dsn, "CREATE PUBLICATION "+trial+" FOR TABLE outbox", "SELECT pg_create_logical_replication_slot('"+trial+"', 'pgoutput')")
	shards := all(s.start)
	for _, r := range shards {
		r.notReady(time.Minute, "SELECT pg_drop_replication_slot('"+trial+"');")
	}
	if made := pg.Value(t, s.dsn, "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name LIKE '"+slot+"%_of_2'"); made != "0" {
		t.Errorf("%s slots were made, though nobody is known to have delivered the rows", made)
	}
	if _, out := s.command("check", "--shard", "1/2"); !strings.Contains(strings.Join(strings.Fields(out), " "), "waits to take over: no checkpoint of the relay of slot "+trial+" is stored") {
		t.Errorf("check says:\n%s", out)
	}
	drop(trial)
	for i, r := range shards {
		r.notReady(time.Minute, fmt.Sprintf("standby: slot %[1]s_%[2]d_of_2 waits to take over: the relay of slot %[1]s stopped at", slot, i+1))
	}
	drop(slot)
	for i, r := range shards {
		r.notReady(time.Minute, "the relay of slot \\\""+slot+"\\\" stopped at", "the relay of slot \""+slot+"\" stopped at")
		r.kill()
		shard := fmt.Sprintf("%d/2", i+1)
		if code, out := s.command("check", "--shard", shard); code != 1 || !strings.Contains(strings.Join(strings.Fields(out), " "), "are gone: the relay of slot \""+slot+"\" stopped at") {
			t.Errorf("check ends with %d and says:\n%s", code, out)
		}
		if code, out := s.command("recover", "--yes", "--shard", shard); code != 0 || !strings.Contains(out, "slot "+slot) || !strings.Contains(out, "is kept") {
			t.Fatalf("recover ends with %d and says:\n%s", code, out)
		}
	}
	shards = all(s.startReady)
	write("c")
	s.noLoss(w, time.Minute)
	stop := func() {
		for _, r := range shards {
			r.stopsClean()
		}
	}
	stop()

	// The way back. The slot is gone, and the relays of the shards have delivered everything before its checkpoint.
	old = s.start()
	old.notReady(time.Minute, "waits to take over: the relay of slot "+slot+"_1_of_2 stopped at")
	shards = all(s.start)
	old.notReady(time.Minute, "Stop that relay")
	stop()
	eventually(t, time.Minute, "ready", old.ready)
	write("d")
	s.noLoss(w, time.Minute)
	if _, out := s.command("check"); strings.Count(strings.Join(strings.Fields(out), " "), "belongs to one of the relays of a setup with 2 shards") != 2 {
		t.Errorf("check says:\n%s", out)
	}
	late := s.start("--shard", "1/2")
	late.notReady(time.Minute, "standby: slot "+slot+" is in use by server process")
	old.stopsClean()
	late.notReady(time.Minute, "standby: slot "+slot+"_1_of_2 is left over: the relay of all rows took over")
	if _, out := s.command("check", "--shard", "1/2"); !strings.Contains(strings.Join(strings.Fields(out), " "), "slot "+slot+"_1_of_2 is left over") {
		t.Errorf("check says:\n%s", out)
	}
	if code, out := s.command("recover", "--yes", "--shard", "1/2"); code != 1 || !strings.Contains(out, "nothing was changed: slot "+slot+"_1_of_2 is left over") {
		t.Errorf("recover ends with %d and says:\n%s", code, out)
	}
	late.stopsClean()

	// A change that was undone is tried again. The checkpoints of the first try are still there.
	for _, tag := range []string{"e", "f"} {
		was := pg.Value(t, s.dsn, "SELECT pg_current_wal_lsn()::text")
		drop(slot + "_1_of_2")
		drop(slot + "_2_of_2")
		old = s.startReady()
		write(tag)
		eventually(t, time.Minute, "the relay of all rows goes on", func() bool {
			return pg.Value(t, s.dsn, "SELECT (confirmed_flush_lsn > '"+was+"')::text FROM pg_replication_slots WHERE slot_name = '"+slot+"'") == "true"
		})
		old.stopsClean()
		write(tag + tag)
		shards = all(s.start)
		shards[0].notReady(time.Minute, "the relay of slot "+slot+" stopped at")
		shards[1].notReady(time.Minute, "the relay of slot "+slot+" stopped at")
		old = s.startReady()
		shards[0].notReady(time.Minute, "Stop that relay")
		shards[1].notReady(time.Minute, "Stop that relay")
		old.stopsClean()
		for _, r := range shards {
			eventually(t, time.Minute, "ready", r.ready)
		}
		s.noLoss(w, time.Minute)
		stop()
	}
	for _, name := range []string{"", "_1_of_2", "_2_of_2"} {
		drop(slot + name)
	}
}
