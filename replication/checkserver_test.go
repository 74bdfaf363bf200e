package replication

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

func TestJudgementOfADoctor(t *testing.T) {
	slots := func(active, lost bool) []standbySlot { return []standbySlot{{"s1", active, lost}} }
	for _, c := range []struct {
		name   string
		change func(*Config, *facts, *examined)
		level  Level
		on     string // "" where nothing but ok is found
		detail string
		fix    string
	}{
		{"all is well", func(*Config, *facts, *examined) {}, OK, "outage", "lasts 2h50m40s at 4 MB/s", ""},
		{"a slow server", func(_ *Config, _ *facts, x *examined) { x.rate = 1e-9 }, OK, "outage", "lasts 87600h0m0s", ""},
		{"no WAL", func(_ *Config, _ *facts, x *examined) { x.rate = 0 }, OK, "outage", "not told", ""},
		{"a fast server", func(_ *Config, _ *facts, x *examined) { x.rate = 40 << 20 }, Warn, "outage", "lasts 17m4s at 40 MB/s", "ALTER SYSTEM"},
		{"below max_wal_size", func(_ *Config, _ *facts, x *examined) { x.KeepMB = 512 }, Warn, "outage", "less than max_wal_size (1024 MB)", "ALTER SYSTEM"},
		{"on RDS", func(_ *Config, _ *facts, x *examined) { x.KeepMB, x.Managed = 512, []string{"rds"} }, Warn, "outage", "", "Set max_slot_wal_keep_size = '50GB' in the DB parameter group"},
		{"on Aurora", func(_ *Config, _ *facts, x *examined) { x.KeepMB, x.Managed, x.Aurora = 512, []string{"rds"}, true }, Warn, "outage", "", "in the DB cluster parameter group"},
		{"on Cloud SQL", func(_ *Config, _ *facts, x *examined) { x.KeepMB, x.Managed = 512, []string{"cloudsql"} }, Warn, "outage", "", "Set the database flag max_slot_wal_keep_size"},
		{"on Azure", func(_ *Config, _ *facts, x *examined) { x.KeepMB, x.Managed = 512, []string{"azure"} }, Warn, "outage", "", "Set the server parameter max_slot_wal_keep_size"},
		{"an idle timeout", func(_ *Config, _ *facts, x *examined) { x.IdleTimeout = 3600 }, Warn, "idle_replication_slot_timeout", "1h0m0s", "= 0"},
		{"a long idle timeout", func(_ *Config, _ *facts, x *examined) { x.IdleTimeout = 72 * 3600 }, "", "idle_replication_slot_timeout", "", ""},
		{"an old minor", func(_ *Config, f *facts, _ *examined) { f.server.Version = 170005 }, Warn, "minor version", "17.5 can move", "17"},
		{"a mended minor", func(_ *Config, f *facts, _ *examined) { f.server.Version = 170006 }, "", "minor version", "", ""},
		{"a superuser", func(_ *Config, f *facts, _ *examined) { f.server.Super = true }, Warn, "superuser", "role u", "setup"},
		{"few connections", func(_ *Config, _ *facts, x *examined) { x.ConnLimit = 2 }, Warn, "connection limit", "may have 2", "CONNECTION LIMIT"},
		{"enough connections", func(_ *Config, _ *facts, x *examined) { x.ConnLimit = 3 }, "", "connection limit", "", ""},
		{"no SELECT", func(_ *Config, f *facts, _ *examined) { f.tables[0].Readable = false }, Warn, "reading public.outbox", "may not read", "GRANT SELECT"},
		{"row-level security", func(_ *Config, _ *facts, x *examined) { x.Secured = []string{"outbox"} }, Warn, "row-level security", "outbox", "BYPASSRLS"},
		{"a standby slot that is missing", func(c *Config, _ *facts, x *examined) { c.Failover, x.WaitsFor = true, "s1" }, Fail, "synchronized_standby_slots", "no physical slot", "take it out"},
		{"one that is lost", func(c *Config, _ *facts, x *examined) {
			c.Failover, x.WaitsFor, x.Slots = true, "s1", slots(false, true)
		}, Fail, "synchronized_standby_slots", "invalidated", "take it out"},
		{"one that is inactive", func(c *Config, _ *facts, x *examined) {
			c.Failover, x.WaitsFor, x.Slots = true, " s1", slots(false, false)
		}, Warn, "synchronized_standby_slots", "inactive", "take it out"},
		{"one that is active", func(c *Config, _ *facts, x *examined) {
			c.Failover, x.WaitsFor, x.Slots = true, "s1", slots(true, false)
		}, "", "synchronized_standby_slots", "", ""},
		{"no failover slot", func(_ *Config, _ *facts, x *examined) { x.WaitsFor = "s1" }, "", "synchronized_standby_slots", "", ""},
		{"a standby without feedback", func(_ *Config, f *facts, x *examined) { f.server.Recovery, x.SyncsSlots = true, "on" }, Warn, "slot synchronization", "not copied", "hot_standby_feedback"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			cfg := valid()
			f := &facts{server: serverFacts{Version: 170011, Role: "u"}, tables: []tableFacts{{Table: Table{"public", "outbox"}, OID: 7, Readable: true}}}
			x := &examined{KeepMB: 40960, MaxWALMB: 1024, ConnLimit: -1, rate: 4 << 20, measured: 2 * time.Second, rateMeasured: true}
			c.change(&cfg, f, x)
			found := cfg.judgeExamined(f, x)
			for _, got := range found {
				if got.Name == c.on {
					if got.Level != c.level || !strings.Contains(got.Detail, c.detail) || !strings.Contains(x.provider().fix(got.Fix), c.fix) {
						t.Errorf("got %+v", got)
					}
					return
				}
			}
			if c.level != "" {
				t.Errorf("nothing about %s: %+v", c.on, found)
			}
		})
	}
}

func TestADoctorsFactsAreReadFromEveryVersion(t *testing.T) {
	onEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable, "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')")
		names := map[string]Level{}
		for _, f := range w.source().Examine(t.Context()) {
			names[f.Name] = f.Level
		}
		if _, unread := names["settings"]; unread || names["superuser"] != Warn || names["catalog"] == Fail {
			t.Errorf("found %v", names)
		}
	})
}

func TestEachProviderTurnsLogicalDecodingOnItsOwnWay(t *testing.T) {
	const plain = "ALTER SYSTEM SET wal_level = 'logical'; then restart Postgres."
	for p, want := range map[provider]string{rds: "rds.logical_replication = 1 in the DB parameter", aurora: "DB cluster parameter", cloudSQL: "cloudsql.logical_decoding", azure: "server parameter wal_level", "": plain} {
		if got := p.fix(plain); !strings.Contains(got, want) || p != "" && strings.Contains(got, "ALTER SYSTEM") {
			t.Errorf("%s: %s", p, got)
		}
	}
}
