package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// Two relays share out the rows, then four, and then two again, while writers go on, rows are removed as soon as they are delivered,
// and relays of both numbers are killed in between. Nobody is told where to begin.
func TestTheNumberOfShardsChangesUnderLoad(t *testing.T) {
	t.Parallel()
	rows := 200 // between two steps
	numbers(t, map[string]*int{"WALPOST_SHARD_ROWS": &rows})
	pg, kafka := testenv.Postgres(t, "15"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	slot := strings.ReplaceAll(unique("shards"), "-", "_")
	s.source = fmt.Sprintf(", slot: %[1]s, publication: %[1]s, snapshot: initial, order_column: seq, time_column: created_at", slot)
	s.extra = "cleanup: {mode: delete, keep: 0s}\n"
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD seq bigint GENERATED ALWAYS AS IDENTITY", "CREATE TABLE history (LIKE outbox)",
		`CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO history SELECT NEW.*; RETURN NULL; END $$`,
		"CREATE TRIGGER remember AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION remember()")
	shards := func(of int) (all []*relay) {
		for i := range of {
			all = append(all, s.start("--shard", fmt.Sprintf("%d/%d", i+1, of)))
		}
		return all
	}
	ready := func(all []*relay) {
		t.Helper()
		for _, r := range all {
			eventually(t, time.Minute, "ready", r.ready)
		}
	}
	wait := func(all []*relay) {
		t.Helper()
		for _, r := range all {
			r.notReady(time.Minute, "Stop that relay")
		}
	}
	drop := func(of int) {
		t.Helper()
		pg.Exec(t, s.dsn, fmt.Sprintf("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '^%s_[0-9]+_of_%d$'", slot, of))
	}

	two := shards(2)
	ready(two)
	w := s.follow()
	work := s.load(&shop.Shop{Writers: 4, Seed: 11, Tag: "s", Pause: 20 * time.Millisecond, History: "history"})
	w.more(t, time.Minute, rows)

	four := shards(4)
	w.more(t, time.Minute, rows)
	two[0].kill()
	four[2].kill()
	two[0] = s.start("--shard", "1/2") // it goes on although the new slots exist
	ready(two[:1])
	four[2] = s.start("--shard", "3/4")
	wait(four)
	w.more(t, time.Minute, rows)
	if code := two[0].stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	wait(four)
	two[1].kill()
	ready(four)
	four[1].kill() // its record may be behind those of the relays before it, and it goes on
	four[1] = s.start("--shard", "2/4")
	ready(four)
	w.more(t, time.Minute, rows)

	again := s.start("--shard", "2/2")
	again.notReady(time.Minute, "delivers the same keys")
	again.kill()
	_, out := s.command("check", "--shard", "1/4")
	if said := strings.Join(strings.Fields(out), " "); strings.Count(said, "belongs to one of the relays of a setup with 2 shards") != 2 || !strings.Contains(said, "SELECT pg_drop_replication_slot('"+slot+"_1_of_2');") ||
		!strings.Contains(said, "this relay delivers shard 1/4") {
		t.Errorf("check says:\n%s", out)
	}
	drop(2)
	four[3].kill()
	four[3] = s.start("--shard", "4/4")
	ready(four)
	if _, out := s.command("check", "--shard", "1/4"); strings.Contains(out, "other shards") {
		t.Errorf("check says of four shards alone:\n%s", out)
	}

	// The checkpoints of the first two are still there, and their slots are not.
	two = shards(2)
	wait(two)
	for _, r := range four {
		if code := r.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	ready(two)
	drop(4)
	w.more(t, time.Minute, rows)
	work.stop()
	eventually(t, time.Minute, "each shard removes its rows", func() bool { return pg.Value(t, s.dsn, "SELECT count(*)::text FROM outbox") == "0" })
	for _, r := range two {
		if code := r.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	pg.Exec(t, s.dsn, "ALTER TABLE outbox RENAME TO removed", "ALTER TABLE history RENAME TO outbox")
	if rep := s.settle(w, time.Minute); rep.Lost+rep.Invented+rep.Disordered+rep.Changed+rep.Moved > 0 {
		t.Errorf("%s", &rep)
	}
	drop(2)
}
