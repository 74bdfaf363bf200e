package replication

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/localpg"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
)

// stream opens a session and starts it at at, or where the slot stands.
func (w *world) stream(at cdc.Position) *Session {
	w.Helper()
	s, err := w.open(w.source(), true, false)
	if err != nil {
		w.Fatal(err)
	}
	if at == 0 {
		at = s.Identity().SlotFound.Confirmed
	}
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	if err := s.Start(ctx, at); err != nil {
		w.Fatal(err)
	}
	return s
}

// until reads, confirming nothing new, until an event is the one. It returns the values of the column n of all rows read.
func (w *world) until(s *Session, n string, is func(ev *cdc.Event) bool) []string {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
	defer cancel()
	var read []string
	due := time.Now().Add(s.StatusEvery())
	for {
		ev, err := s.Next(ctx, 100*time.Millisecond)
		if err != nil {
			w.Fatalf("after %d rows: %v", len(read), err)
		}
		if ev.Kind == cdc.Insert {
			read = append(read, string(ev.Row.Values[ev.Row.Relation.Index(n)].Bytes))
		}
		if is(ev) {
			return read
		}
		if time.Now().After(due) {
			if err := s.Confirm(ctx, 0); err != nil {
				w.Fatalf("after %d rows: %v", len(read), err)
			}
			due = time.Now().Add(s.StatusEvery())
		}
	}
}

// dies reads until the session fails.
func (w *world) dies(s *Session) error {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	for {
		if _, err := s.Next(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

func committed(n int) func(*cdc.Event) bool {
	return func(ev *cdc.Event) bool {
		if ev.Kind == cdc.Commit {
			n--
		}
		return n == 0
	}
}

func insertOf(id string) string {
	return fmt.Sprintf(`INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '%s', 'made', '{}')`, id)
}

func (w *world) close(s *Session) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		w.Error(err)
	}
}

// slot is an expression about the world's slot, "" where there is none.
func (w *world) slot(expression string) string {
	w.Helper()
	return w.value("SELECT (SELECT (" + expression + ")::text FROM pg_replication_slots WHERE slot_name = current_database())")
}

func TestOnlyWhatWasConfirmedDoesNotComeAgain(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		s := w.stream(0)
		// Adjacent commits: one byte too far would skip the next transaction.
		w.exec(insertOf("a"), insertOf("b"), insertOf("c"))
		var first cdc.Position
		w.until(s, "aggregate_id", func(ev *cdc.Event) bool { first = ev.Pos; return ev.Kind == cdc.Commit })
		w.until(s, "aggregate_id", committed(2))
		if err := s.Confirm(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		w.close(s)
		if got := w.slot("active"); got != "false" {
			t.Errorf("active is %s after Close", got)
		}
		if got := w.slot("confirmed_flush_lsn"); got != first.String() {
			t.Errorf("the slot is confirmed up to %s, want %s", got, first)
		}
		s = w.stream(0)
		if got := w.until(s, "aggregate_id", committed(2)); strings.Join(got, "") != "bc" {
			t.Errorf("after a confirmed: %q came again, want b and c", got)
		}
		w.close(s)
		s = w.stream(first) // nothing was confirmed since
		if got := w.until(s, "aggregate_id", committed(2)); strings.Join(got, "") != "bc" {
			t.Errorf("once more: %q came again, want b and c", got)
		}
	})
}

// After a lost connection the acknowledgements of what the former session read arrive before this one has read it again.
func TestConfirmingAheadOfTheStreamSkipsNothing(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		s := w.stream(0)
		w.exec(insertOf("a"), insertOf("b"))
		var second cdc.Position
		both := committed(2)
		w.until(s, "aggregate_id", func(ev *cdc.Event) bool { second = ev.Pos; return both(ev) })
		w.close(s)
		w.exec(insertOf("c"))
		s = w.stream(0)
		if err := s.Confirm(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		if got := w.until(s, "aggregate_id", func(ev *cdc.Event) bool { return ev.Kind == cdc.Commit && ev.Pos > second }); strings.Join(got, "") != "abc" {
			t.Errorf("%q came, want a, b and c", got)
		}
		w.close(s)
		if got := w.slot("confirmed_flush_lsn"); got != second.String() {
			t.Errorf("the slot is confirmed up to %s, want %s", got, second)
		}
	})
}

func TestUpdatesArriveWhereTheyAreWanted(t *testing.T) {
	for _, c := range []struct {
		publish []string
		want    string // of the update that leaves the key and of the one that changes it
	}{{nil, ""}, {[]string{"insert"}, ""}, {[]string{"insert", "update"}, "update update of a row with an old key "}} {
		w := newWorld(t, testenv.Postgres(t, ""), outboxTable)
		w.cfg.Publish = c.publish
		s := w.stream(0)
		w.exec(insertOf("a"), "UPDATE outbox SET event_type = 'y'", "UPDATE outbox SET id = gen_random_uuid()", "DELETE FROM outbox", insertOf("b"))
		var got string
		inserts := 0
		w.until(s, "aggregate_id", func(ev *cdc.Event) bool {
			switch ev.Kind {
			case cdc.Insert:
				inserts++
			case cdc.Update:
				got += "update "
				if ev.Old.Relation != nil {
					got += "of a row with an old key "
				}
			case cdc.Delete:
				got += "delete "
			default:
			}
			return inserts == 2
		})
		if got != c.want {
			t.Errorf("publish %q: %q, want %q", c.publish, got, c.want)
		}
	}
}

func TestRowsOfOneCopyArriveAllAlthoughTheirPositionIsOne(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable)
	s := w.stream(0)
	w.exec(`INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) SELECT 't', n::text, 'e' FROM generate_series(1, 1000) n`)
	positions := map[cdc.LSN]int{}
	got := w.until(s, "aggregate_id", func(ev *cdc.Event) bool {
		if ev.Kind == cdc.Insert {
			positions[ev.LSN]++
		}
		return ev.Kind == cdc.Commit
	})
	if len(got) != 1000 || got[0] != "1" || got[999] != "1000" {
		t.Errorf("%d rows", len(got))
	}
}

// The server decodes old WAL by the publication as it was then: rows that were written before it had publish_via_partition_root come under
// their partition's name, and are rows of the table all the same.
func TestRowsFromBeforeThePublicationKnewTheRootAreTheTables(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, "CREATE TABLE outbox (aggregate_id text, payload text) PARTITION BY LIST (aggregate_id)",
			"CREATE TABLE leaf (payload text, aggregate_id text)", "ALTER TABLE outbox ATTACH PARTITION leaf DEFAULT", "CREATE TABLE other (aggregate_id text)",
			"CREATE PUBLICATION walpost FOR TABLE outbox, other WITH (publish = 'insert')")
		w.cfg.Needs = nil
		w.exec(w.slotOf("pgoutput"), "INSERT INTO outbox VALUES ('before')", "INSERT INTO other VALUES ('other')",
			"ALTER PUBLICATION walpost SET (publish_via_partition_root = true)", "INSERT INTO outbox VALUES ('after')")
		s := w.stream(0)
		tables := map[string]string{}
		w.until(s, "aggregate_id", func(ev *cdc.Event) bool {
			if rel := ev.Row.Relation; ev.Kind == cdc.Insert {
				tables[string(ev.Row.Values[rel.Index("aggregate_id")].Bytes)] = rel.String()
			}
			return tables["after"] != "" && ev.Kind == cdc.Commit
		})
		if tables["before"] != "public.outbox" || tables["after"] != "public.outbox" || tables["other"] != "public.other" {
			t.Errorf("%v", tables)
		}
		w.close(s)
	})
}

// The server describes the partition beside the root, but the rows are the root's: nothing is to be said about the partition.
func TestRowsOfPartitionsComeWithoutAWarning(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, "CREATE TABLE outbox (aggregate_id text, payload text) PARTITION BY LIST (aggregate_id)", "CREATE TABLE leaf PARTITION OF outbox DEFAULT",
			"CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)")
		w.cfg.Needs = nil
		w.exec(w.slotOf("pgoutput"), "INSERT INTO outbox VALUES ('a')")
		s := w.stream(0)
		w.until(s, "aggregate_id", func(ev *cdc.Event) bool { return ev.Kind == cdc.Commit })
		if strings.Contains(w.logs.String(), "under another name") {
			t.Error(w.logs)
		}
		w.close(s)
	})
}

// Rows come under the name that their table had when they were written. The stream and the reading ahead give them the present name.
// A table that has the former name now keeps it, and so does one of the configured tables that swapped their names.
func TestRowsOfARenamedTableHaveItsPresentName(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, "CREATE SCHEMA app", "CREATE TABLE former (id text PRIMARY KEY)", "CREATE TABLE a (id text PRIMARY KEY)", "CREATE TABLE b (id text PRIMARY KEY)",
			"CREATE PUBLICATION walpost FOR TABLE former, a, b WITH (publish = 'insert')")
		w.cfg.Needs, w.cfg.Tables = nil, []string{"app.outbox", "public.a", "public.b"}
		w.exec(w.slotOf("pgoutput"), "INSERT INTO former VALUES ('1')", "ALTER TABLE former RENAME TO outbox", "INSERT INTO outbox VALUES ('2')",
			"ALTER TABLE outbox SET SCHEMA app", "INSERT INTO app.outbox VALUES ('3')", "CREATE TABLE former (id text PRIMARY KEY)", "ALTER PUBLICATION walpost ADD TABLE former",
			"INSERT INTO former VALUES ('4')", "INSERT INTO a VALUES ('5')", "ALTER TABLE a RENAME TO c", "ALTER TABLE b RENAME TO a", "ALTER TABLE c RENAME TO b", "INSERT INTO b VALUES ('6')")
		const want = "1 app.outbox, 2 app.outbox, 3 app.outbox, 4 public.former, 5 public.b, 6 public.b"
		name := func(row *cdc.Row) string { return string(row.Values[0].Bytes) + " " + row.Relation.String() }
		var ahead, streamed []string
		end, err := cdc.ParseLSN(w.value("SELECT pg_current_wal_insert_lsn()::text"))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.source().ReadAhead(t.Context(), 0, end, func(row *cdc.Row) error {
			ahead = append(ahead, name(row))
			return nil
		}); err != nil || strings.Join(ahead, ", ") != want {
			t.Errorf("read ahead: %s, %v, must be %s", strings.Join(ahead, ", "), err, want)
		}
		s := w.stream(0)
		w.until(s, "id", func(ev *cdc.Event) bool {
			if ev.Kind == cdc.Insert {
				streamed = append(streamed, name(&ev.Row))
			}
			return len(streamed) == 6 && ev.Kind == cdc.Commit
		})
		if got := strings.Join(streamed, ", "); got != want {
			t.Errorf("streamed: %s, must be %s", got, want)
		}
		w.close(s)
	})
}

func TestABigTransactionArrivesWholeInOrderAndTheStatusFlows(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		rows, lasts := 20_000, time.Duration(0)
		if strconv.Itoa(pg.Version()) == localpg.DefaultVersion { // long enough for several statuses, and for the timeout without them
			rows, lasts = 200_000, 8*time.Second
		}
		w := newWorld(t, pg, outboxTable)
		w.cfg.DSN += "&options=-c%20wal_sender_timeout%3D6s"
		w.close(w.stream(0)) // makes the slot
		w.exec(fmt.Sprintf(`INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 't', n::text, 'e', jsonb_build_object('pad', repeat('x', 200)) FROM generate_series(1, %d) n`, rows))
		s := w.stream(0)
		if got := s.cfg.walSenderTimeout; got != 6*time.Second {
			t.Errorf("the session takes wal_sender_timeout for %s", got)
		}
		seen, began := 0, time.Now()
		w.until(s, "event_type", func(ev *cdc.Event) bool {
			if ev.Kind == cdc.Insert {
				seen++
				if got := string(ev.Row.Values[2].Bytes); got != fmt.Sprint(seen) {
					t.Fatalf("row %d is %s", seen, got)
				}
				if seen%1000 == 0 {
					time.Sleep(time.Until(began.Add(lasts * time.Duration(seen) / time.Duration(rows))))
				}
			}
			return ev.Kind == cdc.Commit && seen > 0 // 14 also sends transactions without a row of ours
		})
		if seen != rows {
			t.Errorf("%d rows", seen)
		}
	})
}

func TestAnIdleSlotFollowsTheServer(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable, "CREATE TABLE busy (v text)")
		s := w.stream(0)
		w.exec("INSERT INTO busy SELECT repeat('x', 100) FROM generate_series(1, 10000)")
		target, err := cdc.ParseLSN(w.value("SELECT pg_current_wal_lsn()::text"))
		if err != nil {
			t.Fatal(err)
		}
		var at cdc.Position
		w.until(s, "id", func(ev *cdc.Event) bool {
			// Servers before 15 also send the empty transactions of other tables.
			if (ev.Kind == cdc.Idle || ev.Kind == cdc.Commit) && ev.Pos > at {
				at = ev.Pos
				if err := s.Confirm(t.Context(), at); err != nil {
					t.Fatal(err)
				}
			}
			return at.LSN() >= target
		})
		w.close(s)
		if got := w.slot(fmt.Sprintf("confirmed_flush_lsn >= '%s'", target)); got != "true" {
			t.Errorf("the slot is not confirmed up to %s", target)
		}
	})
}

func TestAKilledWalsenderIsWorthAnotherTry(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		s := w.stream(0)
		w.slot("pg_terminate_backend(active_pid)")
		if err := w.dies(s); !fault.Retryable(err) || ipg.SQLState(err) != "57P01" {
			t.Errorf("reading: %v", err)
		}
		s = w.stream(0)
		w.slot("pg_terminate_backend(active_pid)")
		for give := time.Now().Add(time.Minute); ; {
			if err := s.Confirm(t.Context(), 0); err != nil {
				if !fault.Retryable(err) {
					t.Errorf("not reading: %v", err)
				}
				break
			}
			if time.Now().After(give) {
				t.Fatal("not reading: Confirm does not see it")
			}
			time.Sleep(50 * time.Millisecond) // the next status finds the answer to this one
		}
	})
}

func TestADroppedPublicationNeedsAPerson(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		s := w.stream(0)
		w.exec(insertOf("a"))
		w.until(s, "id", committed(1))
		w.exec("DROP PUBLICATION walpost", insertOf("lost"), "CREATE PUBLICATION walpost FOR TABLE outbox", insertOf("b"))
		err := w.dies(s)
		if !fault.NeedsPerson(err) || fault.Hint(err) == "" || !strings.Contains(err.Error(), "walpost") {
			t.Errorf("%v", err)
		}
		t.Log(err)
	})
}

// A fast shutdown waits until everything that was sent is confirmed.
func TestAFastShutdownDoesNotHangOnUs(t *testing.T) {
	for _, version := range testenv.Versions {
		for _, reading := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s reading=%t", version, reading), func(t *testing.T) {
				t.Parallel()
				pg := testenv.Postgres(t, version, testenv.Private())
				w := newWorld(t, pg, outboxTable)
				s := w.stream(0)
				w.exec(insertOf("a"))
				w.until(s, "id", committed(1))
				if !reading {
					w.exec(`INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
						SELECT 't', n::text, 'e', jsonb_build_object('pad', repeat('x', 1000)) FROM generate_series(1, 20000) n`)
				}
				ended := make(chan error, 1)
				go func() {
					status := time.NewTicker(s.StatusEvery())
					defer status.Stop()
					for {
						if reading {
							if _, err := s.Next(context.Background(), 100*time.Millisecond); err != nil {
								ended <- err
								return
							}
							continue
						}
						<-status.C
						if err := s.Confirm(context.Background(), 0); err != nil {
							ended <- err
							return
						}
					}
				}()
				began := time.Now()
				if err := pg.Stop("fast", 2*time.Minute); err != nil {
					t.Fatal(err)
				}
				t.Logf("stopped in %s", time.Since(began).Round(100*time.Millisecond))
				if err := <-ended; !fault.Retryable(err) {
					t.Errorf("the session ended with %v", err)
				}
			})
		}
	}
}
