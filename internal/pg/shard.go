package pg

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// FilterVersion is the first version whose publications have row filters.
const FilterVersion = 150000

// hashes are the functions that a row filter may call on a column of a type. Each is built in and
// immutable. A row filter may not cast a uuid or a number to text.
var hashes = map[uint32]string{
	pgtype.TextOID: "hashtext", pgtype.VarcharOID: "hashtext", pgtype.BPCharOID: "hashbpchar", pgtype.UUIDOID: "uuid_hash",
	pgtype.Int2OID: "hashint2", pgtype.Int4OID: "hashint4", pgtype.Int8OID: "hashint8",
}

// ShardFilter is the row filter of a shard: the rows of rel whose key column has the shard's
// remainder. Every row is in exactly one shard. A row filter that is NULL publishes nothing, so a
// NULL key counts as the hash 0. The mask makes a negative hash positive.
func ShardFilter(s cdc.Shard, rel *cdc.Relation, key string) (string, error) {
	i := rel.Index(key)
	if i < 0 {
		return "", fmt.Errorf("%s has no key column %q", rel, key)
	}
	hash := hashes[rel.Columns[i].TypeOID]
	if hash == "" {
		return "", fault.WithHint(fmt.Errorf("the key column %s of %s has a type that a row filter cannot hash", key, rel),
			"Change the type of the column to text, varchar, char, uuid, smallint, integer or bigint. Or divide the rows by table or by partition (docs/sharding.md).")
	}
	return fmt.Sprintf("(coalesce(%s(%s), 0) & 2147483647) %% %d = %d", hash, QuoteIdent(key), s.Of, s.Index-1), nil
}

// filterOf and filterShown are a filter as ShardFilter makes it, and as the server shows it: with
// parentheses around each operation, and with a cast of a varchar to text. Their groups are the hash
// function, its argument, the number of shards, and the remainder.
var (
	filterOf    = regexp.MustCompile(`^\(coalesce\((\w+)\((.+)\), 0\) & 2147483647\) % (\d+) = (\d+)$`)
	filterShown = regexp.MustCompile(`^\(\(\(COALESCE\((?:pg_catalog\.)?(\w+)\((.+)\), 0\) & 2147483647\) % (\d+)\) = (\d+)\)$`)
	castToText  = regexp.MustCompile(`^\((.+)\)::text$`)
)

// SameFilter reports whether shown, which is how the server shows a row filter, is filter, which is what
// ShardFilter returns. The parentheses count: without them, % comes before &.
func SameFilter(shown, filter string) bool {
	is, want := filterShown.FindStringSubmatch(shown), filterOf.FindStringSubmatch(filter)
	if is == nil || want == nil {
		return false
	}
	column := castToText.ReplaceAllString(is[2], "$1")
	if !strings.HasPrefix(column, `"`) {
		column = QuoteIdent(column)
	}
	return is[1] == want[1] && column == want[2] && is[3] == want[3] && is[4] == want[4]
}

// ReadShards reads the slots of the other relays that share out the rows of the same tables. Such a
// slot has the name of our slot but for the suffix of the shard, and the publication with that suffix
// has a table of ours. Any other slot with such a name is Unknown.
func (n Names) ReadShards(ctx context.Context, conn *pgconn.PgConn) (cdc.Shards, error) {
	suffix := n.Shard.Suffix()
	all := cdc.Shards{Own: n.Shard, Base: strings.TrimSuffix(n.Slot, suffix)}
	if len(n.Tables) == 0 {
		return all, nil
	}
	tables := make([]string, len(n.Tables))
	for i, t := range n.Tables {
		tables[i] = fmt.Sprintf("(%s, %s)", QuoteLiteral(t.Schema), QuoteLiteral(t.Name))
	}
	type slot struct {
		Name, Suffix string
		Confirmed    cdc.Position
		PID          int32
		Ours         bool
		Missing      string // its publication, if that does not exist
	}
	found, err := Rows[slot](ctx, conn, "read the slots of the other shards", fmt.Sprintf(`WITH s AS (SELECT slot_name::text AS name, substr(slot_name, %[1]d) AS suffix, confirmed_flush_lsn AS confirmed, coalesce(active_pid, 0) AS pid
 FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn IS NOT NULL AND starts_with(slot_name, %[2]s) AND slot_name <> %[3]s)
SELECT *, EXISTS (SELECT FROM pg_publication_tables p
 WHERE p.pubname = %[4]s || s.suffix AND (p.schemaname, p.tablename) IN (%[5]s)) AS ours,
 CASE WHEN EXISTS (SELECT FROM pg_publication p WHERE p.pubname = %[4]s || s.suffix) THEN '' ELSE %[4]s || s.suffix END AS missing FROM s WHERE suffix ~ '^(_[0-9]+_of_[0-9]+)?$' ORDER BY name`,
		len(all.Base)+1, QuoteLiteral(all.Base), QuoteLiteral(n.Slot), QuoteLiteral(strings.TrimSuffix(n.Publication, suffix)), strings.Join(tables, ", ")))
	for _, f := range found {
		shard, ok := cdc.ShardOfSuffix(f.Suffix)
		slot := cdc.ShardSlot{Shard: shard, Slot: f.Name, Confirmed: f.Confirmed, ActivePID: f.PID}
		switch {
		case ok && f.Ours:
			all.Slots = append(all.Slots, slot)
		case ok:
			slot.Unpublished = f.Missing
			all.Unknown = append(all.Unknown, slot)
		}
	}
	return all, err
}
