package replication

import (
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

// shardOf makes the configuration that of a shard, as walpost.New does.
func (w *world) shardOf(s cdc.Shard) {
	w.cfg.Slot = strings.TrimSuffix(w.cfg.Slot, w.cfg.Shard.Suffix()) + s.Suffix()
	w.cfg.Publication, w.cfg.Shard = "walpost"+s.Suffix(), s
	w.cfg.Key = func(*cdc.Relation) string { return "aggregate_id" }
}

// What a first start makes, what setup prints, and what the repair of a changed publication runs have the filter of the shard.
func TestAPublicationHasTheRowsOfItsShard(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		w.shardOf(cdc.Shard{Index: 2, Of: 3})
		if pg.Version() < 15 {
			if _, err := w.open(w.source(), true, false); !fault.Misconfigured(err) || !strings.Contains(err.Error(), "needs Postgres 15") {
				t.Errorf("open: %v", err)
			}
			return
		}
		missing, err := w.source().Missing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const where = `FOR TABLE "public"."outbox" WHERE ((coalesce(hashtext("aggregate_id"), 0) & 2147483647) % 3 = 1) WITH (publish = 'insert', publish_via_partition_root = true);`
		for what, sql := range map[string]string{"setup": SetupSQL(w.cfg, missing), "setup of an empty database": SetupSQL(w.cfg, FullSetup(w.cfg))} {
			if !strings.Contains(sql, where) {
				t.Errorf("%s prints:\n%s", what, sql)
			}
		}
		w.mustOpen(w.source(), true).Close(t.Context())
		if unmet := w.unmet(); len(unmet) > 0 {
			t.Errorf("unmet: %v", unmet)
		}
		for _, wrong := range []string{"", " WHERE ((coalesce(hashtext(aggregate_id), 0) & 2147483647) % 3 = 0)", " WHERE ((hashtext(aggregate_id) & 2147483647) % 3 = 1)"} {
			w.exec("ALTER PUBLICATION walpost_2_of_3 SET TABLE outbox" + wrong)
			unmet := w.unmet()
			if len(unmet) != 1 || unmet[0].Name != "shard" || !unmet[0].Losing {
				t.Fatalf("with the filter %q, unmet: %v", wrong, unmet)
			}
			if _, err := w.source().Check(t.Context()); !fault.NeedsPerson(err) {
				t.Errorf("a look beside the stream: %v", err)
			}
			for _, c := range unmet[0].Commands() {
				if strings.Contains(c.Command, "ALTER") {
					w.exec(c.Command)
				}
			}
			if unmet := w.unmet(); len(unmet) > 0 {
				t.Errorf("after the repair, unmet: %v", unmet)
			}
		}
	})
}

// A slot is one of another shard only if the publication with its suffix has one of our tables. A relay of another table with the same
// slot name is none of our business.
func TestOtherShardsAreThoseOfTheSameTables(t *testing.T) {
	pg := testenv.Postgres(t, "18")
	w := newWorld(t, pg, outboxTable, "CREATE TABLE other (LIKE outbox)")
	slot := w.cfg.Slot
	for _, p := range []struct{ suffix, table string }{{"", "outbox"}, {"_1_of_2", "outbox"}, {"_1_of_3", "other"}, {"_2_of_4", "outbox"}, {"_x", "outbox"}, {"_5_of_4", "outbox"}} {
		w.exec("CREATE PUBLICATION walpost"+p.suffix+" FOR TABLE "+p.table, "SELECT pg_create_logical_replication_slot('"+slot+p.suffix+"', 'pgoutput')")
	}
	w.exec("SELECT pg_create_logical_replication_slot('" + slot + "_2_of_2', 'pgoutput')") // nothing says what it reads
	w.cfg.Publish = []string{"insert"}
	for own, want := range map[cdc.Shard]string{{}: "_1_of_2 _2_of_4", {Index: 1, Of: 2}: " _2_of_4", {Index: 1, Of: 4}: " _1_of_2 _2_of_4"} {
		w.shardOf(own)
		sql := testenv.Conn(t, w.dsn)
		found, err := w.cfg.Names().ReadShards(t.Context(), sql.PgConn())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range found.Slots {
			got = append(got, strings.TrimPrefix(s.Slot, slot))
			if s.Confirmed == 0 || s.Suffix() != strings.TrimPrefix(s.Slot, slot) {
				t.Errorf("%+v", s)
			}
		}
		for _, s := range found.Unknown {
			if rest := strings.TrimPrefix(s.Slot, slot); rest != "_1_of_3" && rest != "_2_of_2" {
				t.Errorf("%s is unknown", s.Slot)
			} else if (s.Unpublished == "walpost_2_of_2") != (rest == "_2_of_2") {
				t.Errorf("%s: the publication %q does not exist", s.Slot, s.Unpublished)
			}
		}
		if len(found.Unknown) == 0 {
			t.Errorf("shard %q does not see the slots of other publications", own)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("shard %q sees %q, want %q", own, got, want)
		}
	}
	w.exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
}

// With source.snapshot: initial, the first run creates the slot with its snapshot. It makes no snapshot if the relays of another number
// of shards deliver the rows, so setup may then create the slots.
func TestSetupMakesTheSlotsOfAnotherNumberOfShards(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "18"), outboxTable)
	w.cfg.Publish = []string{"insert"}
	for i := 1; i <= 2; i++ {
		w.shardOf(cdc.Shard{Index: i, Of: 2})
		w.mustOpen(w.source(), true).Close(t.Context())
		w.shardOf(cdc.Shard{Index: 1, Of: 3})
		w.cfg.Outbox.Slot, w.cfg.Snapshot = true, "initial"
		made, err := w.source().Apply(t.Context())
		if i < 2 && !fault.Misconfigured(err) || i == 2 && (err != nil || !slices.Contains(made, "slot "+w.cfg.Slot)) {
			t.Errorf("with %d of 2 slots, setup makes %q, %v", i, made, err)
		}
		w.cfg.Outbox.Slot, w.cfg.Snapshot = false, ""
	}
	w.exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
}

// A relay can have one partition as its table. The rows that the application inserts into the partitioned table come from the relay of
// their partition alone.
func TestEachPartitionCanHaveARelay(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, "CREATE TABLE outbox (aggregate_id text) PARTITION BY HASH (aggregate_id)",
			"CREATE TABLE p0 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 0)", "CREATE TABLE p1 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 1)")
		w.cfg.Needs = nil
		slot := w.cfg.Slot
		sessions := map[string]*Session{}
		for _, p := range []string{"p0", "p1"} {
			w.cfg.Tables, w.cfg.Slot, w.cfg.Publication = []string{"public." + p}, slot+p, p
			sessions[p] = w.stream(0)
		}
		w.exec("INSERT INTO outbox SELECT n FROM generate_series(1, 100) n")
		for p, s := range sessions {
			want := w.value("SELECT string_agg(aggregate_id, ' ' ORDER BY aggregate_id::int) FROM " + p)
			begun := false
			got := w.until(s, "aggregate_id", func(ev *cdc.Event) bool {
				if ev.Kind == cdc.Insert && ev.Row.Relation.String() != "public."+p {
					t.Errorf("the relay of %s has a row of %s", p, ev.Row.Relation)
				}
				begun = begun || ev.Kind == cdc.Insert
				return ev.Kind == cdc.Commit && begun
			})
			if strings.Join(got, " ") != want || len(got) < 10 {
				t.Errorf("%s gives %v, want %s", p, got, want)
			}
			w.close(s)
		}
	})
}
