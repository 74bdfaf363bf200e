package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/command/statuspage"
	"github.com/walpost/walpost/internal/testenv"
)

// What a person sees of a relay that polls: rows that flow, a transaction that delays them, and what waits while no relay runs.
func TestTheStatusOfAPollingRelay(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.extra = "monitor: {interval: 1s}\n"
	s.polled(pg, "")
	w := s.follow()
	status := func(args ...string) (int, string) {
		t.Helper()
		return s.command(append([]string{"status"}, args...)...)
	}
	insert := func() {
		pg.Exec(t, s.dsn, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'Changed', '{"n": 1}')`)
	}
	if code, out := status("--http", "off"); code != 1 || !strings.Contains(out, "the relay has delivered nothing yet") {
		t.Errorf("before the first run: code %d\n%s", code, out)
	}
	r := s.startReady()
	insert()
	eventually(t, time.Minute, "the first event", func() bool { return w.count() == 1 })
	address := strings.TrimPrefix(r.page, "http://")
	eventually(t, time.Minute, "a status that is ok", func() bool {
		code, out := status("--http", address)
		return code == 0 && strings.Contains(out, "undelivered  0\n") && strings.Contains(out, "delayed by   nothing\n") &&
			strings.Contains(out, "polls        when a trigger notifies, and every 50ms\n") && strings.Contains(out, "streaming ("+address+")")
	})

	long, err := pgx.Connect(t.Context(), s.dsn+"&application_name=importer")
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close(t.Context()) //nolint:errcheck // it was used
	testenv.Run(t, long, "BEGIN", "SELECT pg_current_xact_id()")
	insert()
	const waits = "rows wait for transaction"
	eventually(t, time.Minute, "the transaction in /readyz", func() bool {
		code, body := r.get("/readyz")
		return code == 200 && strings.Contains(body, "ok: "+waits) && strings.Contains(body, " (importer) in ")
	})
	// The rows are counted apart from the looks.
	eventually(t, time.Minute, "one row waits", func() bool { return r.metric("walpost_poll_pending_rows") == 1 })
	eventually(t, time.Minute, "the metric has the age of the transaction", func() bool { return r.metric("walpost_poll_blocker_age_seconds") >= 1 })
	if _, body := r.get("/metrics"); strings.Contains(body, "walpost_slot_") {
		t.Error("a relay that polls has metrics of a slot")
	}
	var v statuspage.View
	eventually(t, time.Minute, "the transaction in /api/status", func() bool {
		_, body := r.get("/api/status")
		v = statuspage.View{}
		return json.Unmarshal([]byte(body), &v) == nil && v.Poll != nil && v.Poll.BlockerFull != nil && v.Poll.BlockerFull.PID == int32(long.PgConn().PID())
	})
	if v.Source.Database == "" || strings.Contains(v.Position.Confirmed, "/") {
		t.Errorf("/api/status: %+v", v)
	}
	code, out := status("--http", address, "--json")
	var answer struct {
		statuspage.Poll
		Relay struct{ State string }
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.Pending == nil || *answer.Pending != 1 || answer.Oldest == nil || !strings.Contains(answer.Blocker, "importer") || answer.Relay.State != "streaming" {
		t.Errorf("code %d, %v\n%s", code, err, out)
	}

	// The relay is gone: the checkpoint says what is delivered.
	r.stopsClean()
	code, out = status()
	if code != 0 || !strings.Contains(out, "undelivered  1, the oldest waiting for") || !strings.Contains(out, "to end it: SELECT pg_terminate_backend(") || !strings.Contains(out, "has no address to ask") {
		t.Errorf("without a relay: code %d\n%s", code, out)
	}
	pg.Exec(t, s.dsn, answer.BlockerEnd)

	// Another relay of the table, with the usual name, has delivered this row and answers in place of the relay.
	unnamed := *s
	file, err := os.ReadFile(s.config())
	if err != nil {
		t.Fatal(err)
	}
	_, unnamed.yaml, _ = strings.Cut(string(file), "\n")
	unnamed.yaml, _, _ = strings.Cut(unnamed.yaml, "http:")
	other := unnamed.startReady("--snapshot=" + unnamed.bound())
	address = strings.TrimPrefix(other.page, "http://")
	eventually(t, time.Minute, "a status that is ok of the other relay", func() bool {
		code, out := unnamed.command("status", "--http", address)
		return code == 0 && strings.Contains(out, "undelivered  0\n") && strings.Contains(out, "streaming ("+address+")")
	})
	if code, out := status("--http", address); code == 0 || !strings.Contains(out, "undelivered  1, ") || !strings.Contains(out, "the relay at "+address+" is relay "+pg.Value(t, s.dsn, "SELECT current_database()")+".public.outbox: ") {
		t.Errorf("another relay answers: code %d\n%s", code, out)
	}
	other.stopsClean()
	r = s.startReady()
	eventually(t, time.Minute, "the second event", func() bool { return w.count() == 2 })
	r.stopsClean()
}
