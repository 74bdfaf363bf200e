package slot

import (
	"cmp"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// A healthRow is a Health with what it is computed from.
type healthRow struct {
	Health
	Now         float64 // the server's clock
	Segment     int64   // wal_segment_size
	WALKeepMB   int64   `json:"wal_keep_mb"`
	SeesAll     bool    `json:"sees_all"`
	Role        string
	Row         *pg.Slot `json:"slot"`
	Safe        *int64
	InactiveFor *float64 `json:"inactive_for"`
	MayList     bool     `json:"may_list"`
	OldestWAL   cdc.LSN  `json:"oldest"` // that any slot holds
}

// holdsWAL is the condition for a slot o that others have to reckon with. An invalidated one may still have a restart_lsn (PostgreSQL 18: idle_timeout),
// but the server keeps no WAL for it. walpost's own copy (replication.ReadAhead) ends with its reading.
const holdsWAL = `o.wal_status IS DISTINCT FROM 'lost' AND NOT (o.temporary AND o.slot_name ~ '^walpost_ahead_')`

// healthQuery reads the slot. It reads rows of views as JSON, so that one text serves every version. On a standby that receives
// nothing now, the replayed position can be beyond the received one. The slot may be ahead of the server's position by a little, because the two
// are not read at one instant.
func healthQuery(slot string) string {
	return `WITH w AS (SELECT CASE WHEN pg_is_in_recovery() THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) ELSE pg_current_wal_lsn() END AS lsn)
 SELECT w.lsn AS server_lsn, current_setting('server_version_num')::int AS server_version_num, pg_is_in_recovery() AS standby,
 extract(epoch FROM clock_timestamp())::float8 AS now,
 (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size') AS segment,
 (SELECT CASE WHEN setting::bigint < 0 THEN -1 ELSE setting::bigint << 20 END FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS max_slot_wal_keep_bytes,
 (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_keep_size') AS wal_keep_mb,
 pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all, current_user AS role,
 has_function_privilege('pg_ls_waldir()', 'EXECUTE') AS may_list,
 current_database() AS database, CASE WHEN s.slot_name IS NOT NULL THEN to_json(s) END AS slot,
 CASE WHEN s.restart_lsn IS NULL THEN -1 ELSE greatest(0, pg_wal_lsn_diff(w.lsn, s.restart_lsn))::bigint END AS retained_bytes,
 CASE WHEN s.confirmed_flush_lsn IS NULL THEN -1 ELSE greatest(0, pg_wal_lsn_diff(w.lsn, s.confirmed_flush_lsn))::bigint END AS unconfirmed_bytes,
 s.safe_wal_size AS safe, age(s.catalog_xmin) AS catalog_xmin_age,
 extract(epoch FROM clock_timestamp() - (to_json(s)->>'inactive_since')::timestamptz)::float8 AS inactive_for,
 (SELECT min(o.restart_lsn) FROM pg_replication_slots o WHERE ` + holdsWAL + `) AS oldest, to_json(st) AS decoding, a.wait_event
 FROM w LEFT JOIN pg_replication_slots s ON s.slot_name = ` + pgname.QuoteLiteral(slot) + `
 LEFT JOIN pg_stat_replication_slots st ON st.slot_name = s.slot_name
 LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid`
}

// walDirQuery is apart from healthQuery, because the server checks the right to list for the whole statement.
const walDirQuery = `SELECT coalesce(sum(size), 0)::bigint AS bytes FROM pg_ls_waldir()`

// blockerQuery finds the oldest transaction that has an id. A transaction without an id has written nothing and holds no WAL,
// whatever snapshot (backend_xmin) it keeps. An autovacuum worker with an id holds WAL like any other process. Every role sees
// backend_xid, but only a role with pg_monitor sees what another role's session does.
const blockerQuery = `SELECT b.*, age(b.xid) AS xids FROM (
 SELECT 'transaction' AS kind, a.backend_xid AS xid, a.pid, '' AS name, a.datname AS database, a.usename AS "user", a.application_name AS application,
  CASE WHEN a.backend_type = 'client backend' THEN a.state ELSE a.backend_type END AS state,
  extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age, extract(epoch FROM clock_timestamp() - a.query_start)::float8 AS query_age
 FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.leader_pid IS NULL AND a.pid <> pg_backend_pid()
 UNION ALL
 SELECT 'prepared', p.transaction, 0, p.gid, p.database, p.owner, '', 'prepared', extract(epoch FROM clock_timestamp() - p.prepared)::float8, NULL
 FROM pg_prepared_xacts p) b ORDER BY xids DESC LIMIT 1`

// olderSlotQuery finds the slot, logical or physical, that is furthest behind this slot.
func olderSlotQuery(slot string) string {
	return `SELECT 'slot' AS kind, o.slot_name AS name, coalesce(o.active_pid, 0) AS pid, o.database, CASE WHEN o.active THEN 'active' ELSE 'inactive' END AS state,
 extract(epoch FROM clock_timestamp() - (to_json(o)->>'inactive_since')::timestamptz)::float8 AS age,
 pg_wal_lsn_diff(s.restart_lsn, o.restart_lsn)::bigint AS behind
 FROM pg_replication_slots o JOIN pg_replication_slots s ON s.slot_name = ` + pgname.QuoteLiteral(slot) + `
 WHERE o.restart_lsn < s.restart_lsn AND ` + holdsWAL + ` ORDER BY o.restart_lsn LIMIT 1`
}

func (r *healthRow) health(slot string, sent, received time.Time) Health {
	h := r.Health
	h.Slot, h.At, h.RoundTrip, h.Oldest, h.WALDirBytes = slot, received, received.Sub(sent), r.OldestWAL, -1
	h.ClockSkew = time.Duration(r.Now*1e9) - time.Duration(sent.Add(h.RoundTrip/2).UnixNano())
	switch {
	case r.Standby:
		h.Hidden = "this standby cannot see the transactions of the primary, which also hold WAL: ask the primary"
	case !r.SeesAll:
		h.Hidden = "walpost cannot see the sessions of other roles; to allow it: GRANT pg_monitor TO " + pgname.QuoteIdent(r.Role) + ";"
	}
	if r.Row == nil {
		return h
	}
	s := r.Row.State()
	h.Exists, h.Restart, h.Confirmed = true, s.Restart, r.Row.Confirmed
	h.WALStatus, h.Invalidation, h.Active, h.ActivePID = s.WALStatus, s.Invalidation, s.Active, s.ActivePID
	h.Database = cmp.Or(r.Row.Database, h.Database)
	switch {
	case r.Safe != nil && !r.Standby:
		h.SafeBytes, h.SafeKnown = *r.Safe, true
	case r.Standby && h.KeepBytes >= 0 && h.Restart > 0 && r.Segment > 0:
		// A standby computes safe_wal_size from the position of the WAL that it has written itself, and it writes none.
		h.SafeBytes, h.SafeKnown = safeBytes(h.Restart, h.Server, max(h.KeepBytes, r.WALKeepMB<<20), r.Segment), true
	}
	if r.InactiveFor != nil && !h.Active {
		h.InactiveFor = seconds(*r.InactiveFor)
	}
	return h
}

// safeBytes is safe_wal_size as pg_get_replication_slots computes it: up to the end of the last segment that the limit covers.
func safeBytes(restart, server cdc.LSN, keep, segment int64) int64 {
	return (int64(restart)/segment+keep/segment+1)*segment - int64(server)
}

func seconds(s float64) time.Duration { return max(0, time.Duration(s*float64(time.Second))) }
