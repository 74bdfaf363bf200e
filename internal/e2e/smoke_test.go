package e2e

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/testenv"
)

// The monitor looks at once, and so before the first session has made the slot. The slot has the default name, so this runs beside no
// other test of the shared server.
func TestAFirstStartDoesNotMissTheSlotThatItMakes(t *testing.T) {
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.extra = "monitor: {interval: 1h}\n"
	r := s.startReady()
	if _, body := r.get("/api/status"); !strings.Contains(body, `"state": "streaming"`) || strings.Contains(body, "does not exist") {
		t.Error(body)
	}
}
