package e2e

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// rawDatabase is a database whose texts may be any bytes.
func rawDatabase(t *testing.T, pg *testenv.PG, name string) string {
	t.Helper()
	pg.Exec(t, pg.DSN("postgres"), "CREATE DATABASE "+name+" ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
	u, err := url.Parse(pg.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

const insertRaw = `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES ('id' || chr(255), 'order', 'a', 'made', '{}')`

// The server does not give a text that is not UTF-8, neither from the table nor from the WAL. That needs a person, and what the hint says
// brings the row to Kafka.
func TestATextThatIsNotUTF8HaltsAndTheHintHelps(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"14", "18"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, version, testenv.Private())
			dsn := rawDatabase(t, pg, "raw")
			s := newSetting(t, pg, dsn, testenv.Kafka(t))
			s.extra = "halt_linger: 0s"
			pg.Exec(t, dsn, "ALTER TABLE outbox ALTER id DROP DEFAULT, ALTER id TYPE text USING id::text",
				"ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY", insertRaw)
			ends := func(words ...string) {
				t.Helper()
				r := s.start()
				code := r.wait(time.Minute)
				for _, word := range append(words, "invalid byte sequence", "Repair the row in the table") {
					if code != 3 || !strings.Contains(r.log.String(), word) {
						t.Errorf("exit code %d, it must say %q:\n%s", code, word, r.log)
					}
				}
			}
			repair := "UPDATE outbox SET id = 'repaired' || n WHERE id LIKE 'id%'"
			s.source = ", snapshot: initial, order_column: n"
			ends("read table public.outbox")
			code, out := s.command("check")
			if code == 0 || !strings.Contains(out, "FAIL  postgres: rows of public.outbox") || !strings.Contains(out, "warn  postgres: encoding: the encoding of database raw is SQL_ASCII") {
				t.Errorf("check: code %d\n%s", code, out)
			}
			w := s.follow()
			pg.Exec(t, dsn, repair)
			r := s.startReady()
			w.total(t, time.Minute, 1)
			r.stopsClean()

			pg.Exec(t, dsn, insertRaw)
			ends("has a text value that is not UTF-8", "in transaction 0/", "walpost recover")
			pg.Exec(t, dsn, repair, dropSlot)
			if code, out := s.command("recover", "--yes"); code != 0 {
				t.Errorf("recover: code %d\n%s", code, out)
			}
			r = s.startReady()
			w.total(t, time.Minute, 2)
			r.stopsClean()
		})
	}
}
