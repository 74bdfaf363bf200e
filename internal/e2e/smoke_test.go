package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

func TestEverythingCommittedArrivesOnce(t *testing.T) { // with the default name of a slot, so not beside another one of them
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	r := s.startReady()
	w := s.follow()
	work := &shop.Shop{DSN: s.dsn, Writers: 2, Rows: 2000, Seed: 1}
	if err := work.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	rep := s.settle(w, 60*time.Second)
	if !rep.OK() || rep.Duplicates > 0 {
		t.Errorf("broken promises")
	}
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// The monitor looks at once, and so before the first session has made the slot.
func TestAFirstStartDoesNotMissTheSlotThatItMakes(t *testing.T) {
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.extra = "monitor: {interval: 1h}\n"
	r := s.startReady()
	if _, body := r.get("/api/status"); !strings.Contains(body, `"state": "streaming"`) || strings.Contains(body, "does not exist") {
		t.Error(body)
	}
}
