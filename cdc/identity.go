package cdc

import "time"

// An Identity is what a source says of itself and of the slot at one moment: all that is needed to judge whether a
// remembered position still means what it meant. It is a plain value.
type Identity struct {
	SystemID string // Postgres' system_identifier, decimal
	Timeline uint32
	Database string
	Slot     string
	// Server is the server's own newest position: what it has flushed (a primary) or replayed (a standby). A position
	// beyond it cannot come from this server's history.
	Server Position
	// Recovering says that the server replays a history and has not come to its end: a standby, or a restore under way.
	Recovering bool
	// History lists where each older timeline of this server ended, oldest first, from its timeline history. Empty on timeline 1.
	History []Fork

	SlotFound SlotState
}

// A Fork says that the history of Timeline continues on another timeline from End on.
type Fork struct {
	Timeline uint32
	End      Position
}

// SlotState is the replication slot as the catalog shows it.
type SlotState struct {
	Exists    bool
	Created   bool     // made by this very session, just now
	Confirmed Position // confirmed_flush_lsn; survives an invalidation
	Restart   Position // restart_lsn; 0 when the slot is lost
	Active    bool
	ActivePID int32
	WALStatus string // reserved, extended, unreserved, lost
	// Invalidation is the reason where the server gives one (Postgres 17+), "lost" where it only says that it is.
	// Empty for a usable slot.
	Invalidation string
	// InactiveSince is zero where the server does not say (before 17) or the slot is active.
	InactiveSince time.Time
}
