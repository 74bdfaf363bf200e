package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// finding is one of the findings of walpost check --json.
type finding struct{ Side, Name, Verdict, Why, Fix string }

// doctor is walpost check for a database; there are no brokers.
type doctor struct {
	*testing.T
	source string // further keys of source
	extra  string
}

// finds returns what is found in the database at dsn.
func (d *doctor) finds(dsn string) (code int, found []finding) {
	d.Helper()
	s := &setting{t: d.T, extra: d.extra}
	s.yaml = fmt.Sprintf("source: {dsn: %q, table: public.outbox, snapshot: never%s}\nkafka: {brokers: [\"127.0.0.1:1\"]}", dsn, d.source)
	code, out := s.command("check", "--json")
	var report struct{ Findings []finding }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		d.Fatalf("%v: %s", err, out)
	}
	for _, f := range report.Findings {
		if f.Side == "postgres" {
			found = append(found, f)
		}
	}
	return code, found
}

// about is the only finding of that name in the database at dsn, and must be of that verdict and contain want.
func (d *doctor) about(dsn, name, verdict, want string) finding {
	d.Helper()
	_, found := d.finds(dsn)
	var of []finding
	for _, f := range found {
		if f.Name == name {
			of = append(of, f)
		}
	}
	if len(of) != 1 || of[0].Verdict != verdict || !strings.Contains(of[0].Why, want) {
		d.Fatalf("%s: found %+v, want %s %q\nof %+v", name, of, verdict, want, found)
	}
	return of[0]
}

// A database that is not prepared at all becomes one that is fine by what check prints.
func TestCheckLeadsARestrictedRoleToADatabaseThatIsFine(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"14", "18"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, version, testenv.Private(), testenv.Param("max_slot_wal_keep_size", "20GB"), testenv.Param("track_commit_timestamp", "on"))
			admin := pg.DSN("shop")
			pg.Exec(t, pg.DSN("postgres"), "CREATE DATABASE shop", "CREATE ROLE careful LOGIN")
			pg.Exec(t, admin, shop.Schema, "CREATE PUBLICATION walpost FOR ALL TABLES")
			d := &doctor{T: t, source: ", time_column: created_at", extra: "cleanup: {mode: delete}\nrouter: {table.fields.additional.placement: 'event_type:header:eventType'}"}
			dsn := strings.Replace(admin, "postgres@", "careful@", 1)
			code, found := d.finds(dsn)
			if code != 1 {
				t.Errorf("exit code %d", code)
			}
			wrong := map[string]string{}
			for _, f := range found {
				if f.Verdict != "ok" {
					wrong[f.Name] = f.Verdict
				}
			}
			for name, verdict := range map[string]string{
				"replication connection": "FAIL", "role": "FAIL", "monitoring": "warn", "cleanup of public.outbox": "FAIL", "index for the cleanup of public.outbox": "warn", "publication extras": "warn", "publication operations": "warn", "reading public.outbox": "warn",
			} {
				if wrong[name] != verdict {
					t.Errorf("%s is %q, want %s", name, wrong[name], verdict)
				}
			}
			pg.Exec(t, admin, "DROP PUBLICATION walpost", "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')")
			for range 20 {
				_, found = d.finds(dsn)
				healed := false
				for _, f := range found {
					if f.Verdict == "ok" || f.Name == "minor version" || f.Name == "checkpoint" { // the last one waits for the others
						continue
					}
					sql, _, end := strings.Cut(f.Fix, "; (")
					if !end {
						sql = strings.TrimSuffix(f.Fix, ";")
					}
					for one := range strings.SplitSeq(sql, "; ") {
						pg.Exec(t, admin, one)
					}
					healed = true
					break
				}
				if !healed {
					return
				}
			}
			t.Errorf("it never ends: %+v", found)
		})
	}
}

// Failover slots with a real standby: what the primary and the standby say from the first check to the failover's eve and beyond.
func TestCheckFollowsASlotToItsStandby(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"17", "18"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			const waits, syncs, copied = "synchronized_standby_slots", "slot synchronization", "failover to this standby"
			pg := testenv.Postgres(t, version, testenv.Private())
			pg.Exec(t, pg.DSN("postgres"), "CREATE DATABASE shop")
			primary := pg.DSN("shop")
			pg.Exec(t, primary, shop.Schema, "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')",
				"SELECT pg_create_logical_replication_slot('walpost', 'pgoutput', false, false, true)")
			d := &doctor{T: t, source: ", failover: true"}
			d.about(primary, waits, "warn", "no standby of this server reads from its own physical slot")

			sb := pg.Standby(t)
			standby := sb.DSN("shop") + "&target_session_attrs=any"
			run := func(on *testenv.PG, fix string) {
				t.Helper()
				fix, _, _ = strings.Cut(fix, " (if a provider")
				if _, sql, words := strings.Cut(fix, ": "); words {
					fix = sql
				}
				for one := range strings.SplitSeq(strings.TrimSuffix(fix, ";"), "; ") {
					on.Exec(t, on.DSN("shop"), one)
				}
			}
			run(pg, d.about(primary, waits, "warn", "is empty").Fix)
			d.about(primary, waits, "ok", "decoding waits for standby")

			d.about(standby, copied, "warn", "has no copy on this standby")
			d.about(standby, "slot", "FAIL", "a standby cannot create a slot that survives a failover")
			run(sb, d.about(standby, syncs, "warn", "is off on this standby").Fix)
			d.about(standby, syncs, "ok", "copies the failover slots")
			state := func() string {
				return sb.Value(t, sb.DSN("shop"), "SELECT coalesce(max(CASE WHEN temporary THEN 'temporary' ELSE 'ready' END), 'none') FROM pg_replication_slots WHERE slot_name = 'walpost' AND synced")
			}
			eventually(t, time.Minute, "the standby begins a copy", func() bool { return state() != "none" })
			if state() == "temporary" { // it stays so while the slot on the primary does not move
				d.about(standby, copied, "warn", "is temporary")
			} else {
				t.Error("the copy was ready at once: nothing was seen of one that is not")
			}
			d.about(standby, "slot", "FAIL", "it can be read only after a promotion")
			eventually(t, time.Minute, "the copy is ready", func() bool {
				pg.Exec(t, primary, "SELECT pg_log_standby_snapshot()", "SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())")
				sb.CatchUp(t, pg)
				return state() == "ready"
			})
			d.about(standby, copied, "ok", "would survive a failover")

			if err := sb.Stop("fast", time.Minute); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Minute, "the primary notices", func() bool {
				return pg.Value(t, primary, "SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'physical' AND active") == "0"
			})
			d.about(primary, waits, "warn", "is inactive")
			pg.Exec(t, primary, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_type = 'physical'")
			_, fix, _ := strings.Cut(d.about(primary, waits, "FAIL", "which is not a physical slot").Fix, "remove the slot from the setting: ")
			run(pg, fix)
			d.about(primary, waits, "warn", "no standby of this server reads from its own physical slot")
		})
	}
}
