package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
)

// What verify says of a polled table in each state of its relay. It waits for the checkpoint, and accuses no relay that was killed.
func TestVerifyOfAPolledTable(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "17", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.polled(pg, "")
	s.source += ", snapshot: initial"
	w := s.follow()
	const insert = `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'Changed', '{"n": 1}')`
	verify := func(wait string, code int, note string) (got verified) {
		t.Helper()
		exit, out := s.command("verify", "--json", "--wait", wait)
		_, object, _ := strings.Cut("\n"+out, "\n{")
		if err := json.Unmarshal([]byte("{"+object), &got); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if exit != code || !strings.Contains(got.NotConfirmed, note) || (note == "") != (got.NotConfirmed == "") {
			t.Errorf("code %d, must be %d with %q\n%s", exit, code, note, out)
		}
		return got
	}
	unconfirmed := func(got verified, n int64) {
		t.Helper()
		if got.CannotTell["not_confirmed"] != n || sum(got.Differences) > 0 || got.Matched != got.Rows-n {
			t.Errorf("%+v", got)
		}
	}
	pg.Exec(t, s.dsn, insert)
	unconfirmed(verify("1s", 1, "no checkpoint of "+s.name), 1)

	kills := 4
	numbers(t, map[string]*int{"WALPOST_POLL_ROUNDS": &kills})
	r := s.startReady()
	c := s.crowd(16, 7)
	rnd := rand.New(rand.NewPCG(7, 7))
	for range kills {
		w.more(t, time.Minute, 50)
		time.Sleep(time.Duration(rnd.Int64N(int64(300 * time.Millisecond))))
		r.kill()
		r = s.startReady()
	}
	w.more(t, time.Minute, 20)
	got := verify("1m", 0, "") // while the table grows
	if got.Rows == 0 || got.Matched != got.Rows || sum(got.CannotTell) > 0 {
		t.Errorf("beside the writers: %+v", got)
	}
	c.stop()
	if got = verify("1m", 0, ""); got.Repeated == 0 || got.Matched != got.Rows {
		t.Errorf("%d kills gave %d duplicates: %+v", kills, got.Repeated, got)
	}

	long, err := pgx.Connect(t.Context(), s.dsn+"&application_name=importer")
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close(t.Context()) //nolint:errcheck // it was used
	testenv.Run(t, long, "BEGIN", "SELECT pg_current_xact_id()")
	pg.Exec(t, s.dsn, insert, insert)
	unconfirmed(verify("2s", 1, "rows wait for transaction"), 2)
	testenv.Run(t, long, "COMMIT")
	unconfirmed(verify("1m", 0, ""), 0)

	r.stopsClean()
	pg.Exec(t, s.dsn, insert)
	unconfirmed(verify("1s", 1, "no process polls the table"), 1)
	// The position says of this row that it is delivered.
	lost := pg.Value(t, s.dsn, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, xid) VALUES ('order', 'a', 'Changed', '{"n": 1}', '9') RETURNING id::text`)
	got = verify("1s", 1, "no process polls the table")
	if got.Differences["missing"] != 1 || got.CannotTell["not_confirmed"] != 1 || !slices.ContainsFunc(got.Findings, func(f map[string]any) bool { return f["kind"] == "missing" && f["event_id"] == lost }) {
		t.Errorf("%+v", got)
	}

	// Rows that a cleanup removed are no difference.
	pg.Exec(t, s.dsn, fmt.Sprintf("DELETE FROM outbox WHERE id = '%s' OR n <= 10", lost))
	r = s.startReady()
	if got = verify("1m", 0, ""); got.WithoutRow == 0 {
		t.Errorf("%+v", got)
	}
	r.stopsClean()
}
