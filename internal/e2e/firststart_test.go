package e2e

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

var boundPrinted = regexp.MustCompile(`snapshot: (after [0-9]+/[0-9]+)`)

// A first start over rows is refused, and prints a bound that leaves them out. The bound stays in the file, and the checkpoint is lost, with
// the slot: what was written since the first start comes again, and nothing is left out.
func TestTheBoundOfAFirstStart(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	for _, kind := range []string{"wal", "cursor"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSetting(t, pg, pg.Database(t), kafka)
			slot := unique("first")
			slot = strings.ReplaceAll(slot, "-", "_")
			if kind == "wal" {
				pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY")
				s.source = ", order_column: n, time_column: created_at, slot: " + slot + ", publication: " + slot
			} else {
				s.polled(pg, "")
			}
			w := s.follow()
			source := s.source
			file := func(path string) string {
				return "checkpoint: {store: file, path: " + t.TempDir() + "/" + path + "}\ncleanup: {mode: delete, keep: 0s}\n"
			}
			s.extra = file("first")
			old := s.insert(pg, "old", 1)
			bound := s.bound()
			between := s.insert(pg, "b", 1)
			s.source = source + `, snapshot: "` + bound + `"`
			r := s.startReady()
			first := s.insert(pg, "a", 1)
			eventually(t, time.Minute, "the events behind the bound", func() bool { return w.ledger.Seen(between) == 1 && w.ledger.Seen(first) == 1 })
			r.stopsClean()

			lost := s.insert(pg, "a", 2)
			s.extra = file("second")
			if kind == "wal" {
				pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('"+slot+"')")
			}
			r = s.startReady()
			eventually(t, time.Minute, "the event that only the lost checkpoint would have left out", func() bool { return w.ledger.Seen(lost) >= 1 })
			if n := w.ledger.Seen(old); n != 0 {
				t.Errorf("the row from before the first start came %d times", n)
			}
			r.stopsClean()
		})
	}
}

// bound is what a first start over rows prints.
func (s *setting) bound() string {
	s.t.Helper()
	r := s.start("--snapshot=never")
	code := r.wait(time.Minute)
	printed := boundPrinted.FindStringSubmatch(r.log.String())
	if code != 2 || printed == nil {
		s.t.Fatalf("code %d, and must print a bound:\n%s", code, r.log)
	}
	return printed[1]
}
