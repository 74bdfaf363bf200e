package e2e

import (
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

func TestEverythingCommittedArrivesOnce(t *testing.T) {
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
