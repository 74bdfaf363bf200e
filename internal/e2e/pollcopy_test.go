package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/internal/testenv"
)

// A server is restored from an earlier copy. Its rows say that delivered events are not delivered, so a person decides.
func TestWorkersNoticeAnEarlierCopy(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "17", testenv.Private())
	s := newSetting(t, pg, pg.Database(t), testenv.Kafka(t))
	file := filepath.Join(t.TempDir(), "checkpoint")
	s.extra = "checkpoint: {store: file, path: " + file + "}\nhalt_linger: 0s\n"
	s.claimed(pg, "claim", "")
	w := s.follow()
	r := s.startReady()
	s.insert(pg, "a", 1)
	w.total(t, time.Minute, 1)
	dir := pg.CopyData(t)
	var at uint64
	n := 1
	eventually(t, time.Minute, "the checkpoint is beyond the copy", func() bool {
		n++
		s.insert(pg, "a", n)
		w.total(t, time.Minute, n)
		records, err := statelog.NewFileStore(file).Look(t.Context(), s.name)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := checkpoint.Read(s.name, records)
		if err != nil {
			t.Fatal(err)
		}
		if at == 0 {
			at = uint64(stored.Rec.WAL) + 1
		}
		return uint64(stored.Rec.WAL) >= at
	})
	r.stopsClean()
	restore(t, pg, dir)
	r = s.start()
	if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), "restored from an earlier copy") {
		t.Fatalf("code %d\n%s", code, r.log)
	}
	token := tokenInHint.FindStringSubmatch(r.log.String())
	if token == nil {
		t.Fatalf("no token:\n%s", r.log)
	}
	r = s.startReady("--accept-gap=" + token[1])
	last := s.insert(pg, "b", 1)
	eventually(t, time.Minute, "the next event", func() bool { return w.ledger.Seen(last) == 1 })
	r.stopsClean()
	r = s.startReady()
	r.stopsClean()
}
