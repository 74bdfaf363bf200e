package pg

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

// The shards divide all rows among them, whatever the type of the key is: also rows with a NULL key, with a hash below zero, and with
// the least number. The server accepts each filter, and shows it in a form that SameFilter recognises.
func TestEachRowIsInOneShard(t *testing.T) {
	types := []struct {
		name, value string
		oid         uint32
	}{
		{"text", "'k' || i", pgtype.TextOID},
		{"varchar(40)", "'k' || i", pgtype.VarcharOID},
		{"char(8)", "'k' || i", pgtype.BPCharOID},
		{"uuid", "md5(i::text)::uuid", pgtype.UUIDOID},
		{"smallint", "i - 500", pgtype.Int2OID},
		{"int", "CASE i WHEN 1 THEN -2147483648 ELSE i - 500 END", pgtype.Int4OID},
		{"bigint", "CASE i WHEN 1 THEN -9223372036854775808 ELSE i - 500 END", pgtype.Int8OID},
	}
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		if pg.Version() < 15 {
			return // it has no row filters
		}
		dsn := pg.Database(t)
		for i, typ := range types {
			table, key := fmt.Sprintf("t%d", i), []string{"the Key", "aggregate_id"}[i%2]
			pg.Exec(t, dsn, fmt.Sprintf(`CREATE TABLE %s (id int, %s %s)`, table, QuoteIdent(key), typ.name),
				fmt.Sprintf("INSERT INTO %s SELECT i, %s FROM generate_series(1, 1000) i", table, typ.value), fmt.Sprintf("INSERT INTO %s VALUES (0, NULL)", table))
			numbers := []int{4}
			if typ.name == "text" {
				numbers = []int{2, 4, 7}
			}
			rel := &cdc.Relation{Name: table, Columns: []cdc.Column{{Name: "id", TypeOID: pgtype.Int4OID}, {Name: key, TypeOID: typ.oid}}}
			for _, of := range numbers {
				var sum, make []string
				filters := map[cdc.Shard]string{}
				for _, s := range (cdc.Shard{Of: of}).All() {
					filter, err := ShardFilter(s, rel, key)
					if err != nil {
						t.Fatal(err)
					}
					filters[s] = filter
					make = append(make, fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WHERE (%s) WITH (publish = 'insert')", table+s.Suffix(), table, filter))
				}
				pg.Exec(t, dsn, make...)
				for s, filter := range filters {
					shown := pg.Value(t, dsn, "SELECT rowfilter FROM pg_publication_tables WHERE pubname = $1", table+s.Suffix())
					if !SameFilter(shown, filter) {
						t.Errorf("the filter %q is shown as %q", filter, shown)
					}
					if SameFilter(shown, filters[cdc.Shard{Index: s.Index%of + 1, Of: of}]) || SameFilter(shown, "") {
						t.Errorf("%q passes for another filter than %q", shown, filter)
					}
					sum = append(sum, "(("+shown+") IS TRUE)::int")
					if n := pg.Value(t, dsn, fmt.Sprintf("SELECT count(*)::text FROM %s WHERE %s", table, shown)); len(n) < 3 {
						t.Errorf("%s: shard %s has only %s of 1001 rows", typ.name, s, n)
					}
				}
				wrong := fmt.Sprintf("SELECT count(*)::text FROM %s WHERE %s <> 1", table, strings.Join(sum, " + "))
				if n := pg.Value(t, dsn, wrong); n != "0" {
					t.Errorf("%s: %s rows are not in exactly one of %d shards", typ.name, n, of)
				}
			}
		}
		// Without the parentheses, the server reads another filter, with which shard 3 of 3 has no row.
		pg.Exec(t, dsn, "CREATE PUBLICATION other FOR TABLE t0 WHERE (coalesce(hashtext(\"the Key\"), 0) & 2147483647 % 3 = 1)",
			"CREATE TABLE near (id int, \"a b\" text, ab text)", "CREATE PUBLICATION near FOR TABLE near WHERE ((coalesce(hashtext(ab), 0) & 2147483647) % 3 = 1)")
		for table, key := range map[string]string{"t0": "the Key", "near": "a b"} {
			filter, err := ShardFilter(cdc.Shard{Index: 2, Of: 3}, &cdc.Relation{Columns: []cdc.Column{{Name: key, TypeOID: pgtype.TextOID}}}, key)
			shown := pg.Value(t, dsn, "SELECT rowfilter FROM pg_publication_tables WHERE tablename = $1 AND pubname IN ('other', 'near')", table)
			if err != nil || SameFilter(shown, filter) {
				t.Errorf("%q passes for %q: %v", shown, filter, err)
			}
		}
		// The hash of a key is the same in all versions, so the shards of a key survive an upgrade.
		if got := pg.Value(t, dsn, `SELECT concat_ws(' ', hashtext('order-4711'), hashbpchar('a'), uuid_hash('00000000-0000-0000-0000-000000000001'), hashint4(-1), hashint8(-1))`); got != hashesOfAll {
			t.Errorf("the hashes are %s, and on other versions %s", got, hashesOfAll)
		}
	})
}

const hashesOfAll = "1322982459 1075015857 -1046387463 385747274 385747274"

func TestAShardNeedsAKeyThatARowFilterCanHash(t *testing.T) {
	rel := &cdc.Relation{Schema: "public", Name: "outbox", Columns: []cdc.Column{{Name: "doc", TypeOID: pgtype.JSONBOID}}}
	for _, key := range []string{"doc", "other"} {
		if filter, err := ShardFilter(cdc.Shard{Index: 1, Of: 2}, rel, key); err == nil {
			t.Errorf("%s: %s", key, filter)
		}
	}
}
