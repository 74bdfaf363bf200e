package doctor

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/replication"
)

func TestJudgementOfADoctor(t *testing.T) {
	remote := &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 5432}
	// onStandby is a standby of which nothing is wrong but what change makes of it.
	onStandby := func(slot *ipg.Slot, change func(x *examination)) func(*replication.Config, *ipg.Facts, *examination) {
		return func(_ *replication.Config, f *ipg.Facts, x *examination) {
			f.Server.Recovery, f.Slot = true, slot
			x.SyncsSlots, x.Feedback, x.PrimarySlot, x.PrimaryInfo = "on", "on", "s1", true
			if change != nil {
				change(x)
			}
		}
	}
	slots := func(active, lost bool) []standbySlot { return []standbySlot{{"s1", active, lost}} }
	for _, c := range []struct {
		name   string
		change func(*replication.Config, *ipg.Facts, *examination)
		level  Verdict
		on     string // "" where nothing but ok is found
		detail string
		fix    string
	}{
		{"all is well", func(*replication.Config, *ipg.Facts, *examination) {}, OK, "outage", "lasts 2h50m40s at 4 MB/s", ""},
		{"no timeout", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.SenderTimeout = "0" }, Warn, "wal_sender_timeout", "is off", "60s"},
		{"a short timeout", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.SenderTimeout = "500" }, Warn, "wal_sender_timeout", "500ms", "60s"},
		{"a long timeout", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.SenderTimeout = "3600000" }, Warn, "wal_sender_timeout", "1h0m0s", "60s"},
		{"no limit", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.KeepMB = -1 }, Warn, "max_slot_wal_keep_size", "until the disk is full", "(more than any slot retains now"},
		{"a slow server", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.rate = 1e-9 }, OK, "outage", "lasts 87600h0m0s", ""},
		{"no WAL", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.rate = 0 }, OK, "outage", "unknown how long", ""},
		{"a fast server", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.rate = 40 << 20 }, Warn, "outage", "lasts 17m4s at 40 MB/s", "ALTER SYSTEM"},
		{"below max_wal_size", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.KeepMB = 512 }, Warn, "outage", "less than max_wal_size (1024 MB)", "ALTER SYSTEM"},
		{"as much as max_wal_size", func(_ *replication.Config, f *ipg.Facts, x *examination) { f.Server.KeepMB, x.rate = 1024, 1<<10 }, OK, "outage", "lasts", ""},
		{"on RDS", func(_ *replication.Config, f *ipg.Facts, x *examination) {
			f.Server.KeepMB, f.Server.Provider = 512, fix.RDS
		}, Warn, "outage", "", "Set max_slot_wal_keep_size = <size in MB> in the DB parameter group"},
		{"on Aurora", func(_ *replication.Config, f *ipg.Facts, x *examination) {
			f.Server.KeepMB, f.Server.Provider = 512, fix.Aurora
		}, Warn, "outage", "", "in the DB cluster parameter group"},
		{"on Cloud SQL", func(_ *replication.Config, f *ipg.Facts, x *examination) {
			f.Server.KeepMB, f.Server.Provider = 512, fix.CloudSQL
		}, Warn, "outage", "", "Set max_slot_wal_keep_size = <size in MB> as a database flag"},
		{"on Azure", func(_ *replication.Config, f *ipg.Facts, x *examination) {
			f.Server.KeepMB, f.Server.Provider = 512, fix.Azure
		}, Warn, "outage", "", "Azure does not let you set max_slot_wal_keep_size"},
		{"room on the disk", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.KeepMB = 512 }, Warn, "outage", "", "(more than any slot retains now, or that slot is lost; less than the disk has free)"},
		{"an idle timeout", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.IdleTimeout = 3600 }, Warn, "idle_replication_slot_timeout", "1h0m0s", "= 0"},
		{"a long idle timeout", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.IdleTimeout = 72 * 3600 }, "", "idle_replication_slot_timeout", "", ""},
		{"all of an old minor's defects", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.Version = 170005 }, Warn, "minor version", "17.5 has defects that are fixed in 17.8: decoding can run out of memory", "newest minor version of Postgres 17"},
		{"a minor before a defect came", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.Version = 160008 }, Warn, "minor version", "fixed in 16.12: decoding can wait forever after a crash of the server; a slot that was just created", ""},
		{"a minor before most", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.Version = 140014 }, Warn, "minor version", "14.14 has defects that are fixed in 14.19: the slot can need WAL that the server has already removed", ""},
		{"a mended minor", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.Version = 170008 }, "", "minor version", "", ""},
		{"another that is mended", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.Version = 140019 }, "", "minor version", "", ""},
		{"two defects left", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.Version = 150014 }, Warn, "minor version", "15.14 has defects that are fixed in 15.20: decoding can return wrong rows after DDL in a subtransaction that was rolled back; a slot that was just created or synchronized can be lost", ""},
		{"the last defect", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.Version = 150019 }, Warn, "minor version", "15.19 has defects that are fixed in 15.20: decoding can return wrong rows", ""},
		{"the newest minor", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.Version = 150020 }, "", "minor version", "", ""},
		{"a minor of a provider", func(_ *replication.Config, f *ipg.Facts, _ *examination) {
			f.Server.Version, f.Server.Provider = 170005, fix.RDS
		}, Warn, "minor version", "", "Upgrade the instance"},
		{"a superuser", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Server.Super = true }, Warn, "superuser", "role u", "setup"},
		{"no connection limit", func(*replication.Config, *ipg.Facts, *examination) {}, "", "connection limit", "", ""},
		{"few connections", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.ConnLimit = 5 }, Warn, "connection limit", "may have 5", "CONNECTION LIMIT"},
		{"enough connections", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.ConnLimit = 6 }, "", "connection limit", "", ""},
		{"no SELECT", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Tables[0].Readable = false }, Warn, "reading public.outbox", "may not read", "GRANT SELECT"},
		{"row-level security", func(_ *replication.Config, f *ipg.Facts, _ *examination) { f.Tables[0].Secured = true }, Warn, "row-level security", "outbox", "BYPASSRLS"},
		{"a standby slot that is missing", func(c *replication.Config, _ *ipg.Facts, x *examination) { c.Failover, x.WaitsFor = true, "s1, s2" }, Fail, "synchronized_standby_slots", "names s1, which is not a physical slot", "synchronized_standby_slots = 's2';"},
		{"one that is lost", func(c *replication.Config, _ *ipg.Facts, x *examination) {
			c.Failover, x.WaitsFor, x.Slots = true, "s1", slots(false, true)
		}, Fail, "synchronized_standby_slots", "invalidated", "synchronized_standby_slots = '';"},
		{"one that is inactive", func(c *replication.Config, _ *ipg.Facts, x *examination) {
			c.Failover, x.WaitsFor, x.Slots = true, " s1", slots(false, false)
		}, Warn, "synchronized_standby_slots", "inactive", "remove the slot from the setting"},
		{"one that is active", func(c *replication.Config, _ *ipg.Facts, x *examination) {
			c.Failover, x.WaitsFor, x.Slots = true, `"s1"`, slots(true, false)
		}, OK, "synchronized_standby_slots", "decoding waits for s1", ""},
		{"a slot with failover that nobody configured", func(_ *replication.Config, f *ipg.Facts, x *examination) {
			f.Slot, x.WaitsFor = &ipg.Slot{Failover: true}, "s1"
		}, Fail, "synchronized_standby_slots", "names s1", ""},
		{"no standby is waited for", func(c *replication.Config, _ *ipg.Facts, x *examination) {
			c.Failover, x.Slots = true, append(slots(true, false), standbySlot{"gone", false, true})
		}, Warn, "synchronized_standby_slots", "is empty", "synchronized_standby_slots = 's1';"},
		{"a slot that nobody reads", func(c *replication.Config, _ *ipg.Facts, x *examination) {
			c.Failover, x.Slots = true, append(slots(true, false), standbySlot{"old", false, false})
		}, Warn, "synchronized_standby_slots", "is empty", "docs/cloud-postgres.md) Leave out old until"},
		{"only slots that nobody reads", func(c *replication.Config, _ *ipg.Facts, x *examination) {
			c.Failover, x.Slots = true, slots(false, false)
		}, Warn, "synchronized_standby_slots", "no standby of this server reads", "Leave out s1 until a standby reads it"},
		{"there is no standby", func(c *replication.Config, _ *ipg.Facts, x *examination) {
			c.Failover, x.Slots = true, slots(false, true)
		}, Warn, "synchronized_standby_slots", "no standby of this server", "pg_create_physical_replication_slot"},
		{"no failover slot", func(_ *replication.Config, f *ipg.Facts, x *examination) { f.Slot, x.WaitsFor = &ipg.Slot{}, "s1" }, "", "synchronized_standby_slots", "", ""},
		{"failover before 17", func(c *replication.Config, f *ipg.Facts, x *examination) { c.Failover, f.Server.Version = true, 160015 }, "", "synchronized_standby_slots", "", ""},
		{"a standby without feedback", onStandby(nil, func(x *examination) { x.Feedback = "off" }), Warn, "slot synchronization", "(hot_standby_feedback = on)", "ALTER SYSTEM SET hot_standby_feedback = 'on';"},
		{"a standby without a slot", onStandby(nil, func(x *examination) { x.PrimarySlot = "" }), Warn, "slot synchronization", "(primary_slot_name)", "Set primary_slot_name to the standby's physical slot"},
		{"a standby that asks no database", onStandby(nil, func(x *examination) { x.PrimaryInfo = false }), Warn, "slot synchronization", "(dbname", "Add dbname="},
		{"a standby that synchronizes", onStandby(nil, func(*examination) {}), OK, "slot synchronization", "copies", ""},
		{"a standby that does not", onStandby(&ipg.Slot{Synced: true, Failover: true}, func(x *examination) { x.SyncsSlots = "off" }), Warn, "slot synchronization", "is off", "sync_replication_slots = 'on'"},
		{"a standby that need not", onStandby(&ipg.Slot{}, func(x *examination) { x.SyncsSlots = "off" }), "", "slot synchronization", "", ""},
		{"a copy that is ready", onStandby(&ipg.Slot{Synced: true, Failover: true, Confirmed: 0x1A0}, nil), OK, "failover to this standby", "confirmed up to 0/1A0, and would survive", ""},
		{"a copy that is behind", onStandby(&ipg.Slot{Synced: true, Failover: true, Temporary: true}, nil), Warn, "failover to this standby", "temporary", "pg_log_standby_snapshot"},
		{"a copy that is lost", onStandby(&ipg.Slot{Synced: true, Failover: true, Invalidation: "rows_removed"}, nil), Warn, "failover to this standby", "invalidated (rows_removed)", "copies the slot again"},
		{"no copy", func(c *replication.Config, f *ipg.Facts, x *examination) {
			onStandby(nil, nil)(c, f, x)
			c.Failover = true
		}, Warn, "failover to this standby", "has no copy", "on the primary"},
		{"a slot of the standby's own", onStandby(&ipg.Slot{}, nil), "", "failover to this standby", "", ""},
		{"who sees nothing", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.SeesAll = false }, Warn, "monitoring", "cannot see", `GRANT pg_monitor TO "u";`},
		{"who sees all", func(*replication.Config, *ipg.Facts, *examination) {}, OK, "monitoring", "sees", ""},
		{"TLS", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.encrypted, x.remote = true, remote }, OK, "TLS", "uses TLS", ""},
		{"no TLS far away", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.remote = remote }, Warn, "TLS", "to 10.1.2.3:5432 does not use TLS", "sslmode=verify-full"},
		{"no TLS at home", func(_ *replication.Config, _ *ipg.Facts, x *examination) {
			x.remote = &net.TCPAddr{IP: net.IPv6loopback, Port: 5432}
		}, "", "TLS", "", ""},
		{"a unix socket", func(_ *replication.Config, _ *ipg.Facts, x *examination) {
			x.remote = &net.UnixAddr{Name: "/tmp/.s.PGSQL.5432"}
		}, "", "TLS", "", ""},
		{"a read-only role", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.ReadOnly = true }, "", "default_transaction_read_only", "", ""},
		{"a read-only role that must make", func(c *replication.Config, f *ipg.Facts, x *examination) {
			x.ReadOnly, f.Publication = true, nil
			c.Create = true
		}, Fail, "default_transaction_read_only", "publication walpost cannot be created", `ALTER ROLE "u" IN DATABASE "shop" SET default_transaction_read_only = off;`},
		{"a read-only role that must clean", func(c *replication.Config, _ *ipg.Facts, x *examination) { x.ReadOnly, c.Outbox.Deletes = true, true }, Fail, "default_transaction_read_only", "cleanup can remove nothing", "= off"},
		{"a standby is read-only", func(_ *replication.Config, f *ipg.Facts, x *examination) {
			x.ReadOnly, f.Server.Recovery, f.Publication = true, true, nil
		}, "", "default_transaction_read_only", "", ""},
		{"a cleanup on a standby", func(c *replication.Config, f *ipg.Facts, _ *examination) {
			f.Server.Recovery, c.Outbox.Deletes = true, true
		}, Fail, "cleanup", "nothing can be removed there", "primary"},
		{"a short statement_timeout", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.Statement = 4999 }, Warn, "statement_timeout", "4.999s", "source.dsn"},
		{"enough statement_timeout", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.Statement = 5000 }, "", "statement_timeout", "", ""},
		{"a short transaction_timeout", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.Transaction = 29999 }, Warn, "transaction_timeout", "29.999s", "SET transaction_timeout = 0;"},
		{"enough transaction_timeout", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.Transaction = 30000 }, "", "transaction_timeout", "", ""},
		{"not enough for a cleanup", func(c *replication.Config, _ *ipg.Facts, x *examination) { x.Transaction, c.Outbox.Owns = 30000, true }, Warn, "transaction_timeout", "30s", "= 0"},
		{"nothing spilled", func(_ *replication.Config, _ *ipg.Facts, x *examination) { x.Spilled = &spillFacts{} }, OK, "logical_decoding_work_mem", "(64.0 MiB)", ""},
		{"spilled", func(_ *replication.Config, _ *ipg.Facts, x *examination) {
			x.Spilled = &spillFacts{Txns: 4, Bytes: 400 << 20}
		}, Warn, "logical_decoding_work_mem", "since the slot was created, the server has written 4 transactions (400.0 MiB) to disk", `ALTER ROLE "u" SET logical_decoding_work_mem = '256MB';`},
		{"spilled since a reset", func(_ *replication.Config, _ *ipg.Facts, x *examination) {
			x.Spilled = &spillFacts{Txns: 1, Bytes: 1 << 20, Since: &time.Time{}}
		}, Warn, "logical_decoding_work_mem", "since 0001-01-01 00:00", "128MB"},
		{"spilled too much", func(_ *replication.Config, _ *ipg.Facts, x *examination) {
			x.Spilled = &spillFacts{Txns: 1, Bytes: 20 << 30}
		}, Warn, "logical_decoding_work_mem", "(20.0 GiB)", "Write less in one transaction"},
		{"never decoded", func(*replication.Config, *ipg.Facts, *examination) {}, "", "logical_decoding_work_mem", "", ""},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			cfg := valid()
			f := &ipg.Facts{Server: ipg.Server{Version: 170011, Role: "u", Database: "shop", KeepMB: 40960}, Publication: &ipg.Publication{}, Tables: []ipg.TableFacts{{Table: pgname.Table{Schema: "public", Name: "outbox"}, OID: 7, Readable: true}}}
			x := &examination{cfg: &cfg, f: f, makes: true, settings: settings{
				MaxWALMB: 1024, ConnLimit: -1, SeesAll: true, WorkMem: 64 << 10, rate: 4 << 20, measured: 2 * time.Second, rateMeasured: true,
			}}
			c.change(&cfg, f, x)
			x.Provider = f.Server.Provider
			x.judge()
			found := x.Found
			for _, got := range found {
				if got.Name == c.on {
					if got.Verdict != c.level || !strings.Contains(got.Why, c.detail) || !strings.Contains(got.FixText(), c.fix) {
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
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable, "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')")
		names := map[string]Verdict{}
		for _, f := range w.examine() {
			names[f.Name] = f.Verdict
		}
		if _, unread := names["settings"]; unread || names["superuser"] != Warn || names["catalog"] == Fail {
			t.Errorf("found %v", names)
		}
	})
}

func TestAReadOnlyRoleNeedNotMakeWhatNobodyMakes(t *testing.T) {
	cfg := valid()
	f := &ipg.Facts{Server: ipg.Server{Version: 170011, Role: "u"}}
	for _, makes := range []bool{false, true} {
		x := &examination{cfg: &cfg, f: f, makes: makes, settings: settings{ReadOnly: true}}
		x.judge()
		if got := named(x.Found, "default_transaction_read_only"); (got != nil) != makes {
			t.Errorf("makes %v: %+v", makes, got)
		}
	}
}

func TestTheRateOfWALIsThatOfTheWriters(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable)
	conn, err := w.cfg.Connection().ConnectSQL(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer ipg.Close(conn)
	var x examination
	from := w.value("SELECT pg_current_wal_flush_lsn()::text")
	looked := make(chan error)
	go func() { looked <- x.readRate(t.Context(), conn, 300*time.Millisecond) }()
	for done := false; !done; {
		select {
		case err = <-looked:
			done = true
		default:
			w.exec(insertRow)
		}
	}
	var all float64
	if _, e := fmt.Sscan(w.value("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '"+from+"')::text"), &all); e != nil {
		t.Fatal(e)
	}
	if written := x.rate * x.measured.Seconds(); err != nil || !x.rateMeasured || written <= 0 || written > all+1 || x.measured < 300*time.Millisecond {
		t.Errorf("%v at %v B/s over %s: %v", x.rateMeasured, x.rate, x.measured, err)
	}
}

// The two looks at the WAL take time, so they are only for a server whose limit is compared with the rate.
func TestTheRateIsMeasuredWhereThereIsALimit(t *testing.T) {
	for keep, want := range map[string]bool{"-1": false, "1GB": true} {
		w := newWorld(t, testenv.Postgres(t, "", testenv.Param("max_slot_wal_keep_size", keep)), outboxTable)
		conn, err := w.cfg.Connection().ConnectSQL(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer ipg.Close(conn)
		x := examination{cfg: &w.cfg}
		if x.f, err = w.cfg.Names().Describe(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		if err := x.examineSettings(t.Context(), conn, time.Millisecond); err != nil || x.rateMeasured != want {
			t.Errorf("max_slot_wal_keep_size %s: measured %t, %v", keep, x.rateMeasured, err)
		}
	}
}
