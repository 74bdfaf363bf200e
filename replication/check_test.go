package replication

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

func TestCheckNoticesWhatIsTakenAway(t *testing.T) {
	losses := []struct {
		name string
		min  int
		sql  []string
		want string
	}{
		{"the slot", 0, []string{"SELECT pg_drop_replication_slot(current_database())"}, "does not exist"},
		{"the publication", 0, []string{"DROP PUBLICATION walpost"}, "publication walpost does not exist, but slot"},
		{"the table in it", 0, []string{"ALTER PUBLICATION walpost DROP TABLE outbox"}, "publication walpost does not contain table public.outbox"},
		{"inserts", 0, []string{"ALTER PUBLICATION walpost SET (publish = 'delete')"}, "publication walpost does not publish inserts"},
		{"the table", 0, []string{"DROP TABLE outbox"}, "table public.outbox does not exist"},
		{"a column", 0, []string{"ALTER TABLE outbox DROP COLUMN payload"}, "there is no column payload"},
		{"a column of it", 15, []string{"ALTER PUBLICATION walpost SET TABLE outbox (id, aggregate_id)"}, "has a column list for public.outbox that lacks payload"},
	}
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		for _, l := range losses {
			if pg.Version() < l.min {
				continue
			}
			t.Run(strings.ReplaceAll(l.name, " ", "_"), func(t *testing.T) {
				w := newWorld(t, pg, outboxTable)
				s := w.source()
				w.mustOpen(s, true)
				if _, err := s.Check(t.Context()); err != nil {
					t.Fatalf("before: %v", err)
				}
				w.exec(l.sql...)
				found, err := s.Check(t.Context())
				loses := l.name != "a column" // else the slot still gives everything, and the router's error has no hint here
				if behaviourOf(err) != "person" || !strings.Contains(err.Error(), l.want) || loses && fault.Hint(err) == "" {
					t.Fatalf("got %s %v (hint %q), want %q", behaviourOf(err), err, fault.Hint(err), l.want)
				}
				if loses != strings.Contains(fault.Hint(err), "walpost recover") {
					t.Errorf("the hint, where events are lost (%t): %s", loses, fault.Hint(err))
				}
				if found.Started == "" || found.Server == 0 {
					t.Errorf("found %+v", found)
				}
				if _, again := s.Check(t.Context()); again == nil || again.Error() != err.Error() {
					t.Errorf("the second time: %v", again)
				}
				if !strings.Contains(l.name, "slot") {
					if _, err := w.open(s, false, false); err == nil {
						t.Error("it can still be opened")
					}
				}
			})
		}
	})
}

func TestCheckThatCannotConnectSaysNothingAboutTheSlot(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable)
	s := w.source()
	w.mustOpen(s, true)
	for _, dsn := range []string{"postgres://nobody_of_that_name@" + w.dsn[strings.Index(w.dsn, "@")+1:], "postgres://u@127.0.0.1:1/x"} {
		s.cfg.DSN = conf.Secret(dsn)
		if _, err := s.Check(t.Context()); !fault.Retryable(err) {
			t.Errorf("%s: %s %v", dsn, behaviourOf(err), err)
		}
	}
	s.cfg.DSN = conf.Secret(w.dsn)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Check(ctx); !fault.Retryable(err) {
		t.Errorf("cancelled: %s %v", behaviourOf(err), err)
	}
}

// What another server says about the slot is not the truth about the session's: the relay compares when it was started.
func TestCheckSaysWhichServerAnswered(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable)
	s := w.source()
	session := w.mustOpen(s, true)
	if found, err := s.Check(t.Context()); err != nil || found.Started != session.Identity().Started {
		t.Errorf("the same server: %v, started %q", err, found.Started)
	}
	s.cfg.DSN = conf.Secret(newWorld(t, testenv.Postgres(t, "16")).dsn)
	if found, err := s.Check(t.Context()); err == nil || found.Started == session.Identity().Started {
		t.Errorf("another server: %v, started %q", err, found.Started)
	}
}

// What works and costs is logged once, with its fix.
func TestAWarningIsLoggedOnce(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable, "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE PUBLICATION walpost FOR TABLE outbox, orders WITH (publish = 'insert')")
	s := w.source()
	w.mustOpen(s, true).Close(t.Context())
	w.mustOpen(s, true)
	if logs := w.logs.String(); strings.Count(logs, "publication walpost also has public.orders") != 1 || !strings.Contains(logs, `"hint":"Create a separate publication`) {
		t.Error(logs)
	}
}

func TestRecheckReadsTheSlotAgainAndNoticesAnotherServer(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable)
	s := w.source()
	session := w.mustOpen(s, true)
	was := session.Identity()
	w.exec(insertRow, fmt.Sprintf("SELECT pg_replication_slot_advance('%s', pg_current_wal_lsn())", w.cfg.Slot))
	now, err := session.cfg.recheck(t.Context())
	if err != nil || now.SlotFound.Confirmed <= was.SlotFound.Confirmed || now.Server <= was.Server || now.SystemID != was.SystemID || !now.SlotFound.Created {
		t.Errorf("%+v %v, was %+v", now, err, was)
	}
	if err := session.cfg.probe(t.Context()); err != nil {
		t.Errorf("probe: %v", err)
	}
	w.exec(fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", w.cfg.Slot))
	if now, err = session.cfg.recheck(t.Context()); err != nil || now.SlotFound.Exists {
		t.Errorf("dropped: %+v %v", now, err)
	}
	s.cfg.DSN = conf.Secret(newWorld(t, testenv.Postgres(t, "16")).dsn)
	if _, err := session.cfg.recheck(t.Context()); !fault.Retryable(err) {
		t.Errorf("another server: %v", err)
	}
}

func TestCatalogFillsWhatTheStreamDoesNotSay(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')", "CREATE DOMAIN name AS varchar(20)", "CREATE DOMAIN public.nick AS public.name",
			"CREATE DOMAIN public.moods AS mood[]", "CREATE DOMAIN public.money AS numeric(10,2)", "CREATE DOMAIN public.price AS public.money NOT NULL",
			"CREATE TABLE outbox (id int NOT NULL, aggregate_id public.nick DEFAULT 'x', payload numeric(10,2)[], feeling mood, double int GENERATED ALWAYS AS (id * 2) STORED, moods public.moods, price public.price, gone text, PRIMARY KEY (price, id))",
			"ALTER TABLE outbox DROP COLUMN gone")
		w.cfg.Needs = func(rel *cdc.Relation) ([]string, error) {
			c := rel.Columns
			if len(c) != 7 || rel.String() != "public.outbox" || rel.ReplicaIdentity != 'd' {
				return nil, fmt.Errorf("relation %+v", rel)
			}
			switch {
			case !c[0].NotNull || !c[0].Key || c[0].KeyPosition != 2 || c[0].HasDefault || c[0].TypeName != "integer" || c[0].BaseType != 0 || c[0].BaseName != "int4" || c[1].Key || c[1].KeyPosition != 0 || c[1].NotNull:
				return nil, fmt.Errorf("id: %+v", c[0])
			case !c[1].HasDefault || !strings.HasPrefix(c[1].Default, "'x'") || c[1].TypeName != "public.nick" || c[1].BaseType != 1043 || c[1].TypeMod != -1 || c[1].BaseTypeMod != 20+4 || c[1].BaseName != "varchar":
				return nil, fmt.Errorf("domain: %+v", c[1])
			case c[2].ElementType != 1700 || c[2].TypeName != "numeric(10,2)[]" || c[2].ElementName != "numeric" || c[2].BaseName != "_numeric" || c[2].BaseTypeMod != c[2].TypeMod || c[2].TypeMod <= 0:
				return nil, fmt.Errorf("array: %+v", c[2])
			case strings.Join(c[3].EnumLabels, ",") != "sad,ok,happy" || c[3].TypeName != "public.mood":
				return nil, fmt.Errorf("enum: %+v", c[3])
			case c[4].HasDefault || !c[4].Generated || c[3].Generated:
				return nil, fmt.Errorf("generated: %+v", c[4])
			case c[5].BaseName != "_mood" || c[5].ElementType == 0 || c[5].ElementName != "mood" || strings.Join(c[5].ElementLabels, ",") != "sad,ok,happy" || c[5].EnumLabels != nil:
				return nil, fmt.Errorf("domain over an array of an enum: %+v", c[5])
			case !c[6].NotNull || c[6].KeyPosition != 1 || c[6].BaseName != "numeric" || c[6].BaseTypeMod != c[2].TypeMod:
				return nil, fmt.Errorf("domain over a domain that is not null: %+v", c[6])
			}
			return []string{"id"}, nil
		}
		session := w.mustOpen(w.source(), true)
		rel := &cdc.Relation{ID: 4_000_000, Schema: "public", Name: "gone", Columns: []cdc.Column{{Name: "a", TypeOID: 25, TypeMod: -1}, {Name: "b", TypeOID: 3_999_999, TypeMod: -1}, {Name: `o'"\`, TypeOID: 25, TypeName: "kept"}}}
		if err := session.cfg.catalog(t.Context(), rel); err != nil || rel.Columns[0].TypeName != "text" || rel.Columns[1].TypeName != "" || rel.Columns[2].TypeName != "kept" {
			t.Errorf("a table that is gone: %+v %v", rel, err)
		}
	})
}

func TestTheProbeAsksNoOtherServerThanTheStreams(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""))
	here := w.mustOpen(w.source(), false).conn.Conn().RemoteAddr()
	gone := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} // where nobody listens
	s := w.source()
	s.cfg.DSN = conf.Secret(strings.Replace(w.dsn, "@", "@"+gone.String()+",", 1)) // two hosts
	if err := s.probeAt(here)(t.Context()); err != nil {
		t.Errorf("the server that is there: %v", err)
	}
	s.cfg.DSN = conf.Secret(w.dsn)
	if err := s.probeAt(gone)(t.Context()); !goingDown(err) {
		t.Errorf("the server that is gone, behind a name that leads elsewhere by now: %v", err)
	}
	s.cfg.DSN = conf.Secret(strings.Replace(w.dsn, "@", "@"+gone.String()+",", 1))
	if err := s.probeAt(gone)(t.Context()); !goingDown(err) {
		t.Errorf("the server that is gone, beside another host: %v", err)
	}
}
