package cdc

import (
	"fmt"
	"time"
)

// An Identity is what a source says of itself and of the slot at one moment: all that is needed to
// judge whether a remembered position still means what it meant. It is a plain value.
type Identity struct {
	SystemID string // Postgres' system_identifier, decimal
	Timeline uint32
	Database string
	Slot     string // "" for a source that polls a table
	// Polled is the table of a source that polls, nil for a source that reads a slot.
	Polled *Polled
	// Border is what had been delivered by another source when this session made its new beginning, as
	// Postgres prints a pg_snapshot; "" for nothing. See checkpoint.Record.
	Border string
	// Server is the server's own newest position: what it has flushed (a primary) or replayed (a
	// standby). A position beyond it cannot come from this server's history.
	Server LSN
	// Recovering says that the server replays a history and has not come to its end: a standby, or
	// a restore under way.
	Recovering bool
	// History lists where each older timeline of this server ended, oldest first, from its timeline
	// history. Empty on timeline 1.
	History []Fork

	SlotFound SlotState

	// Tableless says that no table is configured: logical messages are the only events.
	Tableless bool

	// Published was read after Server. If it is the same as at an earlier moment, nobody changed
	// the publication between that moment and Server.
	Published Published
	// Unpublished says why rows that are written now are not in the stream, for example because the
	// table has another name. It is "" if they are in the stream.
	Unpublished string
	// Settled says that the publication and its entries are older than everything that the slot
	// still gives.
	Settled bool
	// Time is the server's clock when Server was read.
	Time time.Time
	// Started is when the server was started. It distinguishes two servers, and two starts of one
	// server.
	Started string
}

// SameHistory reports whether positions of i mean the same in other.
func (i Identity) SameHistory(other Identity) bool {
	return i.SystemID == other.SystemID && i.Timeline == other.Timeline && i.Database == other.Database && i.Slot == other.Slot && i.Polled.Counts(other.Polled)
}

// Reader names what the source reads by, for log lines: the slot or the strategy.
func (i Identity) Reader() (key, name string) {
	if i.Polled != nil {
		return "poll", i.Polled.Strategy
	}
	return "slot", i.Slot
}

// InUse says that another process reads for the same relay.
func (i Identity) InUse() string {
	what := "slot " + i.Slot + " is in use"
	if i.Polled != nil {
		what = "the table is polled for this relay"
	}
	if i.SlotFound.Client != "" {
		return fmt.Sprintf("%s by server process %d of %s", what, i.SlotFound.ActivePID, i.SlotFound.Client)
	}
	return fmt.Sprintf("%s by server process %d", what, i.SlotFound.ActivePID)
}

// Published says which rows of the catalog make the server publish the configured tables. A row's
// OID and xmin are the same at two moments only if nobody changed the row in between: VACUUM, a
// failover and a restart keep both.
type Published struct {
	Publication string           `json:"publication"`
	OID         uint32           `json:"oid"`  // of the publication; 0 where there is none of that name
	XMin        uint32           `json:"xmin"` // of its row in pg_publication
	Tables      []PublishedTable `json:"tables"`
}

// A Polled is a table that is polled, and how. Positions of one strategy mean nothing to another one.
type Polled struct {
	Strategy string `json:"strategy"`
	// XIDColumn is the column with the transaction ids that the positions are. A position by one column
	// means nothing by another one. It is "" if the positions are no transaction ids.
	XIDColumn string `json:"xid_column,omitzero"`
	// Claims says that workers claim the rows, so that the table says which ones are delivered.
	Claims bool `json:"claims,omitzero"`
	// Table is schema.table. A table that takes its name has another OID, and the copy of a database
	// (CREATE DATABASE … TEMPLATE) has another database's.
	Table    string `json:"table"`
	OID      uint32 `json:"oid"`
	Database uint32 `json:"database_oid"`
}

// Counts reports whether p and o count positions in the same way, or are both nil.
func (p *Polled) Counts(o *Polled) bool {
	return p == o || p != nil && o != nil && p.Strategy == o.Strategy && p.XIDColumn == o.XIDColumn
}

// IsTable reports whether o polls the same table, whatever its name is. It is true if p or o is nil or doesn't have the OIDs.
func (p *Polled) IsTable(o *Polled) bool {
	return p == nil || o == nil || p.OID == 0 || o.OID == 0 || p.OID == o.OID && p.Database == o.Database
}

// String names the settings of the source.
func (p *Polled) String() string {
	text := "the table, with source.poll.strategy " + p.Strategy
	if p.XIDColumn != "" {
		text += " and source.poll.xid_column " + p.XIDColumn
	}
	return text
}

// PublishedTable is a configured table. It is published as long as one of Entries is there.
type PublishedTable struct {
	Name    string           `json:"name"` // schema.table
	OID     uint32           `json:"oid"`
	Entries []PublishedEntry `json:"entries"`
}

// PublishedEntry is what makes a publication contain a table.
type PublishedEntry struct {
	By   string `json:"by"`            // PublishedByTable, PublishedBySchema, PublishedByAll
	OID  uint32 `json:"oid,omitzero"`  // 0 for PublishedByAll: the publication's own row says it
	XMin uint32 `json:"xmin,omitzero"` // likewise
	// Filtered reports whether an entry by table has a row filter. The filter has no effect while an
	// entry by schema exists. It is not stored, because it is part of the row that XMin is of.
	Filtered bool `json:"-"`
}

// What makes a publication contain a table.
const (
	PublishedByTable  = "table"      // a row of pg_publication_rel, of the table or of a table that it is a partition of
	PublishedBySchema = "schema"     // a row of pg_publication_namespace
	PublishedByAll    = "all tables" // FOR ALL TABLES
)

// A Fork says that the history of Timeline continues on another timeline from End on.
type Fork struct {
	Timeline uint32
	End      LSN
}

// SlotState is the replication slot as the catalog shows it. For a source that polls it is zero, but
// a session that has made a beginning shows that as a slot that it created with Confirmed there, and
// ActivePID is the server process that polls the table for the same relay.
type SlotState struct {
	Exists    bool
	Created   bool     // made by this very session, just now
	Confirmed Position // confirmed_flush_lsn; survives an invalidation
	Restart   LSN      // restart_lsn; 0 when the slot is lost
	Active    bool
	ActivePID int32
	Client    string // address of who reads it
	WALStatus string // reserved, extended, unreserved, lost
	// Invalidation is the reason where the server gives one (Postgres 17+), "lost" where it only
	// says that it is. Empty for a usable slot.
	Invalidation string
}
