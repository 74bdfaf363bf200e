package replication

import (
	"time"

	"github.com/walpost/walpost/cdc"
)

// Health is a slot at one moment, as SQL shows it: how much WAL it holds, and why. It is a plain value.
type Health struct {
	Slot, Database string
	At             time.Time // by this machine's clock
	Exists         bool      // without the slot, only what is said of the server is known

	ServerVersion int  // as server_version_num
	Standby       bool // the server is in recovery
	// ClockSkew is the server's clock minus ours, off by RoundTrip/2 at most.
	ClockSkew time.Duration
	RoundTrip time.Duration

	Server    cdc.Position // newest WAL: written by a primary, received by a standby
	Restart   cdc.Position // oldest WAL that the slot holds; 0 where it is lost
	Confirmed cdc.Position

	// RetainedBytes is the WAL that the slot holds; UnconfirmedBytes is what of it was not confirmed. The difference is
	// held for transactions that are still open somewhere, not for the consumer. Both are -1 where they cannot be told.
	RetainedBytes    int64
	UnconfirmedBytes int64
	// SafeBytes is how much more WAL may be written before the slot can be lost; negative when it can be at the next
	// checkpoint. It means something only where SafeKnown is set: with a limit, for a slot that is not lost.
	SafeBytes int64
	SafeKnown bool
	KeepBytes int64 // max_slot_wal_keep_size; -1 is no limit

	WALStatus    string // reserved, extended, unreserved, lost
	Invalidation string // why the server has invalidated the slot; "" for a usable one

	Active    bool
	ActivePID int32
	// InactiveFor is how long nobody has read the slot, 0 while somebody does. Before Postgres 17 it is how long this
	// Monitor has seen nobody, which InactiveAtLeast says.
	InactiveFor     time.Duration
	InactiveAtLeast bool
	WaitEvent       string // what the walsender waits for, as pg_stat_activity has it; WaitForStandbyConfirmation is a stall

	CatalogXminAge int64      // transactions; 0 where the slot holds none
	Decoding       SlotCounts // since StatsSince

	// Oldest is where the oldest WAL begins that any slot holds. WALDirBytes is the size of pg_wal, -1 where it was not asked for
	// or may not be read.
	Oldest      cdc.Position
	WALDirBytes int64

	// Blocker is what holds WAL although we have confirmed it; nil where nothing is seen that does. Hidden says what cannot be
	// seen and what would show it; "" where all is seen.
	Blocker *Blocker
	Hidden  string
}

// SlotCounts is what decoding has cost since the slot's statistics began (pg_stat_replication_slots).
type SlotCounts struct {
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
	// BlockedBySlot is another slot that holds older WAL than ours. It does not hold ours back, but as long as it is there
	// no WAL is freed whatever we confirm.
	BlockedBySlot BlockerKind = "slot"
)

// A Blocker is the oldest thing that keeps WAL from being freed.
type Blocker struct {
	Kind        BlockerKind
	Name        string // of a prepared transaction (gid) or a slot
	PID         int32  // 0 where no process belongs to it
	Database    string // "" for a physical slot
	User        string
	Application string // application_name of the session
	State       string // such as "idle in transaction", or "inactive" of a slot; "" without the right to see it
	// Age is since the transaction began or the slot was left; where that cannot be seen, since this Monitor first saw it.
	Age time.Duration
	// QueryAge is since its newest statement began, 0 where that cannot be seen. The statement's text is not read: it may
	// hold what must not be shown.
	QueryAge time.Duration
	// Certain says that the slot is confirmed past the transaction's beginning: restart_lsn cannot pass it, whatever we do. Without
	// it the transaction is the oldest one, and will hold WAL back as soon as we have come to it.
	Certain bool
	End     string // the SQL that ends it
}
