package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/internal/testenv"
)

// ahead reads ahead to where a new reading of the table is, and returns the ids.
func (w *world) ahead(from cdc.LSN) (string, error) {
	w.Helper()
	r, err := table.Source{DB: w.cfg.Connection(), Names: w.cfg.Names()}.Open(w.Context(), table.Options{})
	if err != nil {
		w.Fatal(err)
	}
	defer r.Close()
	// Shorter than the server takes to ask by itself whether somebody is there.
	ctx, cancel := context.WithTimeout(w.Context(), 20*time.Second)
	defer cancel()
	var ids []string
	err = w.source().ReadAhead(ctx, from, r.Position(), func(row *cdc.Row) error {
		ids = append(ids, string(row.Values[0].Bytes))
		return nil
	})
	return strings.Join(ids, " "), err
}

// The copy of the slot gives what the slot will give, while that one is in use, and the slot stays where it is.
func TestReadAheadGivesWhatTheSlotWillGive(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, "CREATE TABLE outbox (id int PRIMARY KEY, aggregate_id text, payload text)", "INSERT INTO outbox VALUES (1)")
		w.cfg.Snapshot = "initial"
		s := w.mustOpen(w.source(), true)
		at := s.Identity().SlotFound.Confirmed
		if err := s.Start(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		want := func(want string) {
			t.Helper()
			if got, err := w.ahead(0); err != nil || got != want {
				t.Errorf("read ahead: %q, %v, must be %q", got, err, want)
			}
		}
		want("")
		// A commit that is not awaited is visible before it is written.
		w.exec("INSERT INTO outbox VALUES (2), (3)", "DELETE FROM outbox WHERE id = 2", "UPDATE outbox SET payload = 'x'",
			"SET synchronous_commit = off; INSERT INTO outbox VALUES (4)")
		want("2 3 4")
		// The next record will begin a page, and a segment.
		w.exec("SELECT pg_switch_wal()")
		want("2 3 4")
		for range 12 { // wherever in a page the WAL ends
			w.exec("SELECT pg_logical_emit_message(false, 'x', repeat('x', 2000))")
			want("2 3 4")
		}
		// Where keepalives may run ahead, a later event tells that the stream has come far enough.
		w.cfg.ConfirmKeepalives = false
		later := make(chan string)
		go func() {
			got, err := w.ahead(0)
			later <- fmt.Sprint(got, err)
		}()
		select {
		case got := <-later:
			t.Errorf("a keepalive ended the reading ahead: %s", got)
		case <-time.After(3 * time.Second):
		}
		w.exec("INSERT INTO outbox VALUES (6)")
		if got := <-later; got != "2 3 4<nil>" && got != "2 3 4 6<nil>" {
			t.Errorf("read ahead with an event: %s", got)
		}
		w.cfg.ConfirmKeepalives = true
		// The stream begins behind the slot's position where more is delivered than confirmed.
		from, err := cdc.ParseLSN(w.value("SELECT pg_current_wal_insert_lsn()::text"))
		if err != nil {
			t.Fatal(err)
		}
		w.exec("INSERT INTO outbox VALUES (5)")
		if got, err := w.ahead(from); err != nil || got != "5" {
			t.Errorf("read ahead from %s: %q, %v, must be 5", from, got, err)
		}
		if got := w.slot("confirmed_flush_lsn"); got != at.String() {
			t.Errorf("the slot moved from %s to %s", at, got)
		}
		if got := w.until(s, "id", func(ev *cdc.Event) bool { return ev.Kind == cdc.Commit }); len(got) == 0 {
			t.Error("the slot gives nothing")
		}
	})
}

// A standby that lags may have answered the question for the table's rows: the rows that it has not replayed are in no stream.
func TestReadAheadRefusesAReadingFromBeforeTheStream(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "16"), "CREATE TABLE outbox (id int PRIMARY KEY, aggregate_id text, payload text)")
	at := w.mustOpen(w.source(), true).Identity().SlotFound.Confirmed
	if _, err := w.ahead(at.LSN() + 1<<30); !fault.Retryable(err) || !strings.Contains(err.Error(), "different servers") {
		t.Errorf("the reading is of before the stream: %v", err)
	}
}

func TestReadAheadSaysWhatKeepsIt(t *testing.T) {
	pg := testenv.Postgres(t, "16", testenv.Private(), testenv.Param("max_replication_slots", "1"))
	w := newWorld(t, pg, "CREATE TABLE outbox (id int PRIMARY KEY, aggregate_id text, payload text)")
	_ = w.mustOpen(w.source(), true)
	w.exec("INSERT INTO outbox VALUES (1)")
	if _, err := w.ahead(0); !fault.Retryable(err) || !strings.Contains(fault.Hint(err), "max_replication_slots") {
		t.Errorf("no slot is free: %v, hint %q", err, fault.Hint(err))
	}
	role := w.restricted()
	w.exec("ALTER ROLE "+role+" REPLICATION", "GRANT SELECT ON outbox TO "+role, "REVOKE EXECUTE ON FUNCTION pg_copy_logical_replication_slot(name, name, boolean) FROM public")
	if _, err := w.ahead(0); !errors.Is(err, ErrNoReadAhead) {
		t.Errorf("without the right: %v", err)
	}
}
