package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// TestOnlyCommittedMessagesAreDelivered: what a subtransaction or a prepared transaction rolls back is not delivered, nor is a message
// of another prefix, whatever it has. One transaction is larger than the memory that the server gives to a transaction.
func TestOnlyCommittedMessagesAreDelivered(t *testing.T) {
	t.Parallel()
	foreign := 10_000_000 // the bytes of a message with another prefix
	numbers(t, map[string]*int{"WALPOST_FOREIGN_MESSAGE": &foreign})
	pg, kafka := testenv.Postgres(t, "18", testenv.Param("max_prepared_transactions", "5"), testenv.Param("logical_decoding_work_mem", "64kB")), testenv.Kafka(t)
	s := messages(t, pg, kafka, ", table: public.outbox, snapshot: never")
	content := func(id string) string {
		return fmt.Sprintf(`json_build_object('id', %[1]s, 'aggregate_type', 'order', 'aggregate_id', 'k', 'payload', repeat('x', 2000))::text`, id)
	}
	emit := func(id string) string { return "PERFORM pg_logical_emit_message(true, 'outbox', " + content(id) + ");" }
	pg.Exec(t, s.dsn, "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)")
	w, r := s.follow(), s.startReady()

	pg.Exec(t, s.dsn, "DO $$ BEGIN "+emit("'before'")+" BEGIN "+emit("'inner'")+" RAISE EXCEPTION 'x'; EXCEPTION WHEN raise_exception THEN "+emit("'handler'")+" END; "+emit("'behind'")+" END $$")
	for id, end := range map[string]string{"prepared": "COMMIT", "refused": "ROLLBACK"} {
		pg.Exec(t, s.dsn, fmt.Sprintf("BEGIN; SELECT pg_logical_emit_message(true, 'outbox', %s); PREPARE TRANSACTION '%s'", content("'"+id+"'"), id+s.name))
		pg.Exec(t, s.dsn, fmt.Sprintf("%s PREPARED '%s'", end, id+s.name))
	}
	for _, other := range []string{"''", "'outbox '", "'OUTBOX'", "E'outbox\\n'", "E'\\x1b[31m<script>'", "repeat('p', 1000000)"} {
		for _, transactional := range []bool{true, false} {
			pg.Exec(t, s.dsn, fmt.Sprintf("SELECT pg_logical_emit_message(%t, %s, '\\x00ff'::bytea)", transactional, other))
		}
	}
	pg.Exec(t, s.dsn, fmt.Sprintf("SELECT pg_logical_emit_message(true, 'other', repeat('x', %d))", foreign))
	// 400 messages of 2,000 bytes, each in a subtransaction, and half of them before a statement that fails
	pg.Exec(t, s.dsn, "DO $$ BEGIN FOR i IN 1..200 LOOP BEGIN "+emit("'large-' || i")+" EXCEPTION WHEN OTHERS THEN RAISE; END; BEGIN "+emit("'never-' || i")+
		" INSERT INTO outbox (id) VALUES (NULL); EXCEPTION WHEN not_null_violation THEN NULL; END; END LOOP; END $$")
	pg.Exec(t, s.dsn, "SELECT pg_logical_emit_message(true, 'outbox', "+content("'last'")+")")

	eventually(t, time.Minute, "the last message", func() bool { return w.ledger.Seen("last") == 1 })
	want := []string{"before", "handler", "behind", "prepared", "last"}
	for i := range 200 {
		want = append(want, fmt.Sprint("large-", i+1))
	}
	if n := w.ledger.Seen(want...); n != len(want) || w.count() != len(want) {
		t.Errorf("%d of the %d messages arrived, and %d records in all", n, len(want), w.count())
	}
	now, peak := r.rss()
	t.Logf("memory %d MiB, at most %d MiB", now>>20, peak>>20)
	if body := r.log.String(); strings.Contains(body, `"level":"error"`) {
		t.Errorf("the log has errors:\n%s", body)
	}
	r.stopsClean()
}
