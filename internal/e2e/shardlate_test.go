package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// The shards of a new number begin together. A shard whose slot is newer than that begins late: what it leaves out is a gap that a person
// closes.
func TestAForgottenShardLosesNothingSilently(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	slot, dir := strings.ReplaceAll(unique("late"), "-", "_"), t.TempDir()
	s.yaml = fmt.Sprintf(`source: {dsn: %q, table: public.outbox, order_column: seq, time_column: created_at SOURCE}
router: {route.topic.replacement: "%s${routedByValue}"}
kafka: {brokers: [%s]}
halt_linger: 0s
checkpoint: {store: file, path: %s}
`, s.dsn, s.prefix, strings.Join(s.brokers, ", "), filepath.Join(dir, "cp")) // without a name
	of := func(source string) { s.yaml = strings.Replace(s.yaml, "SOURCE}", source+"}", 1) }
	unsharded := s.yaml
	of(fmt.Sprintf(", slot: %[1]s, publication: %[1]s, snapshot: never", slot))
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD seq bigint GENERATED ALWAYS AS IDENTITY")
	write := func(tag string) { <-s.load(&shop.Shop{Writers: 2, Seed: 5, Tag: tag, Rows: 60}).done }

	one := s.start("--shard", "1/2")
	one.notReady(time.Minute, "slot "+slot+"_1_of_2 waits for the other shards: slot "+slot+"_2_of_2 does not exist yet. Start its relay")
	two := s.startReady("--shard", "2/2")
	eventually(t, time.Minute, "ready", one.ready)
	if strings.Contains(one.log.String(), "its checkpoint is lost") {
		t.Errorf("a shard that waited says that its checkpoint is lost:\n%s", one.log)
	}
	w := s.follow()
	write("a")
	s.noLoss(w, time.Minute)
	two.stopsClean()
	pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('"+slot+"_2_of_2')")
	if err := os.Remove(filepath.Join(dir, "cp_2_of_2")); err != nil { // as if it had never run
		t.Fatal(err)
	}
	write("b")

	two = s.start("--shard", "2/2")
	if code := two.wait(time.Minute); code != 3 || !strings.Contains(two.log.String(), "the other shards began at") || !strings.Contains(two.log.String(), "walpost recover") {
		t.Fatalf("code %d\n%s", code, two.log)
	}
	if code, out := s.command("recover", "--yes", "--shard", "2/2"); code != 0 || !strings.Contains(out, "is kept") {
		t.Fatalf("recover ends with %d and says:\n%s", code, out)
	}
	two = s.startReady("--shard", "2/2")
	write("c")
	s.noLoss(w, time.Minute)
	for _, r := range []*relay{one, two} {
		r.stopsClean()
	}
	for _, name := range []string{"_1_of_2", "_2_of_2"} {
		pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('"+slot+name+"')")
	}

	// A relay that polls would begin behind the rows that are there, whatever the shards have delivered. Only their files know them now.
	s.yaml = unsharded
	of(", kind: poll, snapshot: never, poll: {strategy: cursor}")
	if r := s.start(); r.wait(time.Minute) != 2 || !strings.Contains(r.log.String(), "belongs to a relay that reads one shard of the same table") {
		t.Errorf("code %d\n%s", r.cmd.ProcessState.ExitCode(), r.log)
	}
}

// A deployment may wait for one shard before it starts the next one, once setup has made all slots.
func TestAShardIsReadyAloneAfterSetupHasMadeAllSlots(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	slot := strings.ReplaceAll(unique("ahead"), "-", "_")
	s.source = fmt.Sprintf(", slot: %[1]s, publication: %[1]s, snapshot: never", slot)
	if code, out := s.command("setup", "--shards", "2", "--apply", "--make-slot"); code != 0 || !strings.Contains(out, slot+"_1_of_2") || !strings.Contains(out, slot+"_2_of_2") {
		t.Fatalf("setup ends with %d and says:\n%s", code, out)
	}
	w := s.follow()
	write := func(tag string) { <-s.load(&shop.Shop{Writers: 2, Seed: 7, Tag: tag, Rows: 60}).done }
	one := s.startReady("--shard", "1/2")
	write("a")
	two := s.startReady("--shard", "2/2")
	write("b")
	s.noLoss(w, time.Minute)
	one.stopsClean()
	two.stopsClean()
}
