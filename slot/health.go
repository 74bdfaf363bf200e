// Package slot watches a logical replication slot: how much WAL the slot holds and why (Reader,
// Health), when that WAL uses up a limit (the forecast), how bad that is (Monitor, Status), and
// when the slot must be dropped to protect the database's disk (Breaker). It needs no relay.
//
// It isn't an API yet: anything in it may change with any release. The API is the root package, outbox and inbox.
package slot

import (
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/pg"
)

// Health is a slot at one moment, as SQL shows it: how much WAL it holds, and why. The tags are the names of /api/status.
type Health struct {
	Slot     string    `json:"name"`
	Database string    `json:"database"`
	At       time.Time `json:"-"`      // by this machine's clock
	Exists   bool      `json:"exists"` // without the slot, only the facts about the server are known

	ServerVersion int  `json:"server_version_num"` // as server_version_num
	Standby       bool `json:"standby"`            // the server is in recovery
	// ClockSkew is the server's clock minus this machine's, off by RoundTrip/2 at most.
	ClockSkew time.Duration `json:"-"`
	RoundTrip time.Duration `json:"-"`

	Server    cdc.LSN `json:"server_lsn"`  // newest WAL: written by a primary, received by a standby
	Restart   cdc.LSN `json:"restart_lsn"` // oldest WAL that the slot holds; 0 where it is lost
	Confirmed cdc.LSN `json:"confirmed_flush_lsn"`

	// RetainedBytes is the WAL that the slot holds, and UnconfirmedBytes the part of it that was not confirmed. The
	// difference is held for transactions that are still open, not for the consumer. -1 is unknown.
	RetainedBytes    int64 `json:"retained_bytes"`
	UnconfirmedBytes int64 `json:"unconfirmed_bytes"`
	// SafeBytes is how much more WAL may be written before the slot can be lost. It is negative when the next checkpoint
	// can take the slot. It means something only where SafeKnown is set: with a limit, for a slot that is not lost.
	SafeBytes int64 `json:"-"`
	SafeKnown bool  `json:"-"`
	KeepBytes int64 `json:"max_slot_wal_keep_bytes"` // max_slot_wal_keep_size; -1 is no limit

	WALStatus    string `json:"wal_status"`          // reserved, extended, unreserved, lost
	Invalidation string `json:"invalidation_reason"` // why the server has invalidated the slot; "" for a usable one

	Active    bool  `json:"active"`
	ActivePID int32 `json:"active_pid"`
	// InactiveFor is how long nobody has read the slot, 0 while somebody does. Before Postgres 17 it is how long this
	// Reader has seen nobody, and InactiveAtLeast is set.
	InactiveFor     time.Duration `json:"-"`
	InactiveAtLeast bool          `json:"inactive_at_least"`
	WaitEvent       string        `json:"wait_event"` // of the walsender, as in pg_stat_activity; WaitForStandbyConfirmation is a stall

	CatalogXminAge int64         `json:"catalog_xmin_age"` // transactions; 0 where the slot holds none
	Decoding       DecodingStats `json:"decoding"`

	// Oldest is the beginning of the oldest WAL that any slot holds. WALDirBytes is the size of
	// pg_wal, or -1 if the Reader does not measure it or the role may not read it.
	Oldest      cdc.LSN `json:"-"`
	WALDirBytes int64   `json:"-"`

	// Blocker is what holds WAL although it is confirmed; nil if nothing is seen that does. Hidden says what the role
	// cannot see and what would show it; "" if it sees everything.
	Blocker *Blocker `json:"-"`
	Hidden  string   `json:"hidden"`
}

// lost reports whether the WAL of the slot is gone.
func (h *Health) lost() bool { return h.WALStatus == "lost" || h.Invalidation != "" }

// DecodingStats is what decoding has cost since the slot's statistics began (pg_stat_replication_slots).
type DecodingStats struct {
	SpillTxns   int64 `json:"spill_txns"`
	SpillCount  int64 `json:"spill_count"`
	SpillBytes  int64 `json:"spill_bytes"` // written to disk for big transactions
	StreamTxns  int64 `json:"stream_txns"`
	StreamBytes int64 `json:"stream_bytes"` // sent before their transaction's end; 0 for a slot that only walpost reads
	TotalTxns   int64 `json:"total_txns"`
	TotalBytes  int64 `json:"total_bytes"`
}

// BlockerKind says what a Blocker is.
type BlockerKind string

// The kinds of Blocker.
const (
	BlockedByTransaction BlockerKind = "transaction" // an open transaction that has written something
	BlockedByPrepared    BlockerKind = "prepared"    // a prepared transaction that nobody has finished
	// BlockedBySlot is another slot that holds older WAL. It does not hold this slot back, but the server frees no WAL
	// as long as the other slot is there.
	BlockedBySlot BlockerKind = "slot"
)

// A Blocker is the oldest thing that keeps WAL from being freed.
type Blocker struct {
	Kind        BlockerKind `json:"kind"`
	Name        string      `json:"name"`     // of a prepared transaction (gid) or a slot
	PID         int32       `json:"pid"`      // 0 where no process belongs to it
	Database    string      `json:"database"` // "" for a physical slot
	User        string      `json:"user"`
	Application string      `json:"application"` // application_name of the session
	State       string      `json:"state"`       // such as "idle in transaction", or "inactive" of a slot; "" without the right to see it
	// Age is since the transaction began or the slot was left. If the role cannot see that, it is since this Reader
	// first saw the blocker.
	Age time.Duration `json:"-"`
	// QueryAge is since its newest statement began, 0 if the role cannot see it. The statement's text is not read,
	// because it may hold what must not be shown.
	QueryAge time.Duration `json:"-"`
	// Certain says that the slot is confirmed past the transaction's beginning, so restart_lsn cannot pass it.
	// Otherwise it is the oldest transaction, and holds WAL back as soon as the slot has come to it.
	Certain bool   `json:"certain"`
	End     string `json:"end"` // the SQL that ends it
}

// String describes the blocker for people.
func (b *Blocker) String() string {
	text := string(b.Kind)
	if b.Kind == BlockedByPrepared {
		text += " transaction"
	}
	if b.Name != "" {
		text += " " + b.Name
	}
	session := pg.Session{PID: b.PID, User: b.User, Application: b.Application, Database: b.Database, State: b.State}
	if b.Kind == BlockedByPrepared {
		session.State = "" // the kind tells it
	}
	text += session.String()
	if b.Age > 0 {
		text += ", for " + b.Age.Round(time.Second).String()
	}
	if b.QueryAge > 0 && b.Kind == BlockedByTransaction {
		text += ", its newest statement began " + b.QueryAge.Round(time.Second).String() + " ago"
	}
	return text
}
