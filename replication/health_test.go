package replication

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/slot"
)

func TestLostSlotIsJudgedByTheCallerAndReplacedOnlyOnRequest(t *testing.T) {
	testenv.OnEachLimited(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		s := w.source()
		was := w.mustOpen(s, true).Identity()
		w.exec(insertRow)
		w.pg.LoseSlot(w.T, w.dsn, w.cfg.Slot)
		if _, err := s.Check(t.Context()); !fault.NeedsPerson(err) || !strings.Contains(err.Error(), "is invalidated (") {
			t.Errorf("check: %s %v", behaviourOf(err), err)
		} else if hint := fault.Hint(err); !strings.HasPrefix(hint, "Run walpost recover ") || !strings.Contains(hint, "To give these events up instead, use walpost run --accept-gap=") {
			t.Errorf("check: hint %q", hint)
		}
		if found := w.unmet(); len(found) != 1 || found[0].Name != "slot" || !strings.Contains(found[0].Why, "is invalidated (") || found[0].Fix.Text("") != recoverGone(false) {
			t.Errorf("unmet: %+v", found)
		}
		slot := w.mustOpen(s, true).Identity().SlotFound
		if !slot.Exists || slot.Created || slot.Invalidation == "" || slot.Restart != 0 || slot.Confirmed != was.SlotFound.Confirmed || slot.WALStatus != "lost" {
			t.Errorf("opened: %+v", slot)
		}
		w.exec("DROP PUBLICATION walpost", publicationForOutbox) // older than the slot that is made now
		session, err := w.open(s, true, true)
		if err != nil {
			t.Fatalf("replace: %v (%s)", err, fault.Hint(err))
		}
		if slot = session.Identity().SlotFound; !slot.Created || slot.Invalidation != "" || slot.Confirmed <= was.SlotFound.Confirmed {
			t.Errorf("replaced: %+v", slot)
		}
		if _, err := s.Check(t.Context()); err != nil {
			t.Errorf("check after: %v", err)
		}
	})
}

func TestMakingTheSlotIsBoundedAndNamesWhomItWaitsFor(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		w.cfg.Snapshot = "initial"
		w.cfg.CreateTimeout = 500 * time.Millisecond
		conn := testenv.Conn(w.T, w.dsn)
		testenv.Run(w.T, conn, "BEGIN", insertRow)
		s := w.source()
		_, err := w.open(s, true, false)
		pid := fmt.Sprintf("process %d (postgres@%s, idle in transaction", conn.PgConn().PID(), w.cfg.Slot)
		if behaviourOf(err) != "retry" || !strings.Contains(err.Error(), "create slot "+w.cfg.Slot+": waited 500ms for "+pid) || !strings.Contains(fault.Hint(err), fmt.Sprintf("pg_terminate_backend(%d)", conn.PgConn().PID())) {
			t.Fatalf("%s %v (%s)", behaviourOf(err), err, fault.Hint(err))
		}
		if w.slot("slot_name") != "" {
			t.Error("a half-made slot is left")
		}
		testenv.Run(w.T, conn, "COMMIT")
		s.cfg.CreateTimeout = time.Minute
		if !w.mustOpen(s, true).Identity().SlotFound.Created {
			t.Error("not made")
		}
	})
}

func TestSetupSQLRunsAsPrinted(t *testing.T) {
	for name, outbox := range map[string]Outbox{
		"plain": {Slot: true}, "deleted from": {Slot: true, Deletes: true}, "partitioned": {Slot: true, Partitioned: true, Owns: true, TimeColumn: "writtenAt"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
				w := newWorld(t, pg)
				role := "role_" + w.cfg.Slot
				w.cfg.Tables, w.cfg.Failover, w.cfg.Outbox = []string{`"Shop"."outBox"`}, pg.Version() >= 17, outbox
				w.cfg.DSN = conf.Secret(strings.Replace(w.dsn, "postgres@", role+"@", 1))
				sql := SetupSQL(w.cfg, FullSetup(w.cfg))
				t.Cleanup(func() { w.exec("DROP OWNED BY "+role, "DROP ROLE "+role) })
				var statement strings.Builder
				for line := range strings.SplitSeq(sql, "\n") {
					if strings.HasPrefix(line, "--") {
						continue
					}
					code, _, _ := strings.Cut(line, " -- ")
					statement.WriteString(code + "\n")
					if s := statement.String(); strings.HasSuffix(strings.TrimSpace(code), ";") && strings.Count(s, "$$")%2 == 0 {
						w.exec(s)
						statement.Reset()
					}
				}
				if bad := w.unmet(); len(bad) > 0 {
					t.Errorf("%v after\n%s", bad, sql)
				}
				if opts, err := w.source().Missing(t.Context()); err != nil || !opts.Empty() {
					t.Errorf("afterwards %+v %v is missing", opts, err)
				}
				if outbox.Partitioned {
					w.exec(`INSERT INTO "Shop"."outBox" (aggregate_type, aggregate_id, event_type) SELECT 'a', 'b', 'c'`,
						`INSERT INTO "Shop"."outBox" (aggregate_type, aggregate_id, event_type, "writtenAt") SELECT 'a', 'b', 'c', now() + interval '71 hours'`)
				}
				slot := w.mustOpen(w.source(), true).Identity().SlotFound
				if slot.Created {
					t.Error("the slot was made again")
				}
			})
		})
	}
}

// A role has what it was given and nothing more, as in a real installation.
func TestRightsThatAreMissingAreNamed(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable, "CREATE ROLE role_"+t.Name()[strings.LastIndex(t.Name(), "/")+1:]+"_weak LOGIN")
		role := "role_" + t.Name()[strings.LastIndex(t.Name(), "/")+1:] + "_weak"
		t.Cleanup(func() { w.exec("DROP OWNED BY "+role, "DROP ROLE "+role) })
		w.cfg.DSN = conf.Secret(strings.Replace(w.dsn, "postgres@", role+"@", 1))
		expect := func(behaves, text, hint string) {
			t.Helper()
			_, err := w.open(w.source(), true, false)
			if behaviourOf(err) != behaves || !strings.Contains(err.Error(), text) || !strings.Contains(fault.Hint(err), hint) {
				t.Errorf("got %s %v (%s), want %s %q %q", behaviourOf(err), err, fault.Hint(err), behaves, text, hint)
			}
		}
		expect("fail", "connect for replication", "ALTER ROLE \""+role+"\" REPLICATION;")
		if opts, err := w.source().Missing(t.Context()); err != nil || !opts.AlterRole || opts.Role != role || len(opts.Grants) != 1 {
			t.Errorf("missing: %+v %v", opts, err)
		}
		w.exec("ALTER ROLE " + role + " REPLICATION")
		expect("fail", "role "+role+" may not create it: it lacks the privilege CREATE on database", "As the owner of the tables: CREATE PUBLICATION")
		w.exec("GRANT CREATE ON DATABASE " + w.cfg.Slot + " TO " + role)
		expect("fail", "role "+role+" may not create it: public.outbox belongs to postgres", "As the owner")
		w.exec(publicationForOutbox, insertRow)
		expect("config", "bytes of rows (the role may not count them)", "snapshot: after ")
		w.exec("TRUNCATE outbox")
		if !w.mustOpen(w.source(), true).Identity().SlotFound.Created {
			t.Error("not made")
		}
		w.cfg.DSN = conf.Secret(strings.Replace(string(w.cfg.DSN), "/"+w.cfg.Slot, "/no_such_database", 1))
		expect("fail", "no_such_database", "source.dsn")
		w.cfg.DSN = conf.Secret(strings.Replace(w.dsn, "postgres@", "no_such_role@", 1))
		expect("fail", "no_such_role", `Check that role "no_such_role" exists and may log in. To create role "no_such_role", or to grant what it lacks, run setup as an administrator: walpost setup --role=no_such_role --apply --dsn "<DSN of an administrator>"`)
		w.cfg.DSN = "host=127.0.0.1 port=1 user=u password=geheim dbname=x"
		expect("retry", "refused", "")
		if _, err := w.open(w.source(), true, false); strings.Contains(err.Error(), "geheim") {
			t.Errorf("the password is in %v", err)
		}
	})
}

// logsSnapshots has the primary log its running transactions until stop is called: a standby makes a slot only then.
func logsSnapshots(t *testing.T, primary *testenv.PG) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(50 * time.Millisecond):
				conn, err := pgx.Connect(t.Context(), primary.DSN("postgres"))
				if err == nil {
					_, _ = conn.Exec(t.Context(), "SELECT pg_log_standby_snapshot()")
					conn.Close(t.Context())
				}
			}
		}
	}()
	return func() { close(end); <-ended }
}

func TestStandbyIsReadOnlyWhereItIsAskedFor(t *testing.T) {
	primary := testenv.Postgres(t, "17", testenv.Private())
	w := newWorld(t, primary, outboxTable, publicationForOutbox)
	standby := primary.Standby(t)
	w.cfg.DSN = conf.Secret(standby.DSN(w.cfg.Slot))
	_, err := w.open(w.source(), true, false)
	if behaviourOf(err) != "retry" || !strings.Contains(fault.Hint(err), "target_session_attrs=any") {
		t.Fatalf("%s %v (%s)", behaviourOf(err), err, fault.Hint(err))
	}
	both := fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,%d user=postgres dbname=%s sslmode=disable", standby.Port(), primary.Port(), w.cfg.Slot)
	w.cfg.DSN = conf.Secret(both)
	session := w.mustOpen(w.source(), false)
	if got := session.Identity(); got.SystemID == "" || got.SlotFound.Exists {
		t.Errorf("%+v", got)
	}
	w.cfg.DSN = conf.Secret(both + " target_session_attrs=any")
	w.cfg.Slot += "_standby"
	s := w.source()
	s.cfg.CreateTimeout = 500 * time.Millisecond
	made, err := w.open(s, true, false)
	for range 2 {
		if err != nil {
			break
		}
		made.Close(t.Context()) // the primary has logged its running transactions in this moment, as it does every 15 seconds
		standby.Exec(t, standby.DSN("postgres"), fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", w.cfg.Slot))
		made, err = w.open(s, true, false)
	}
	if behaviourOf(err) != "retry" || !strings.Contains(err.Error(), "on the primary, run SELECT pg_log_standby_snapshot();") || fault.Hint(err) != "" {
		t.Errorf("nothing is logged: %s %v (%s)", behaviourOf(err), err, fault.Hint(err))
	}
	s.cfg.CreateTimeout = w.cfg.CreateTimeout
	stop := logsSnapshots(t, primary)
	made, err = w.open(s, true, false)
	stop()
	if err != nil {
		t.Fatalf("%v (%s)", err, fault.Hint(err))
	}
	if !made.Identity().SlotFound.Created {
		t.Error("not made")
	}
	if _, err := made.cfg.recheck(t.Context()); err != nil {
		t.Errorf("recheck: %v", err)
	}
	reader := slot.NewReader(w.cfg.Connection(), w.cfg.Slot)
	t.Cleanup(reader.Close)
	if h, err := reader.Read(t.Context(), false); err != nil || !h.Exists || h.Server == 0 {
		t.Errorf("health: %+v, %v", h, err)
	}
	if found, err := s.Check(t.Context()); err != nil || found.Timeline != 1 {
		t.Errorf("check: %v, timeline %d", err, found.Timeline)
	}
	made.Close(t.Context())
	standby.Promote(t)
	w.cfg.DSN = conf.Secret(standby.DSN(made.Identity().Database))
	promoted := w.mustOpen(w.source(), false).Identity()
	if promoted.Timeline != 2 || len(promoted.History) != 1 || promoted.History[0].Timeline != 1 || promoted.History[0].End == 0 || promoted.SystemID != made.Identity().SystemID {
		t.Errorf("promoted: %+v", promoted)
	}
}

// A standby follows another one that was promoted. It stays in recovery, and its walsenders go on. What it has replayed since is of the new timeline.
func TestCheckOfAStandbySaysWhichTimelineItHasReplayed(t *testing.T) {
	primary := testenv.Postgres(t, "17", testenv.Private())
	w := newWorld(t, primary, outboxTable, publicationForOutbox)
	promoted, follows := primary.Standby(t), primary.Standby(t)
	w.cfg.DSN = conf.Secret(follows.DSN(w.cfg.Slot) + "&target_session_attrs=any")
	s := w.source()
	if found, err := s.Check(t.Context()); found.Timeline != 1 {
		t.Fatalf("before: timeline %d, %v", found.Timeline, err)
	}
	promoted.CatchUp(t, primary)
	follows.CatchUp(t, primary)
	promoted.Promote(t)
	follows.Exec(t, follows.DSN("postgres"), "ALTER SYSTEM SET primary_slot_name = ''",
		fmt.Sprintf("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=%d user=postgres sslmode=disable'", promoted.Port()), "SELECT pg_reload_conf()")
	promoted.Exec(t, promoted.DSN("postgres"), "CREATE TABLE on_the_new_timeline ()")
	follows.CatchUp(t, promoted)
	if found, err := s.Check(t.Context()); found.Timeline != 2 || !found.Recovering {
		t.Errorf("after: timeline %d, recovering %t, %v", found.Timeline, found.Recovering, err)
	}
}
