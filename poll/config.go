// Package poll reads the outbox table by SQL, for databases where logical replication is not to be
// had. A Source gives what a stream would give: transactions of rows, in an order that keeps the
// order of each key.
//
// What a position is, and when it is safe, depends on the strategy. docs/polling.md says what each
// strategy promises. cursor.go has the rules of the strategy cursor and the reasons for them.
package poll

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/pg"
)

// Cursor is the strategy that writes nothing to the table.
const Cursor = "cursor"

// Claim and Delete have workers claim rows. Claim marks delivered rows, and Delete removes them.
const (
	Claim  = "claim"
	Delete = "delete"
)

// strategies are all that two relays may use on one table.
var strategies = []string{Cursor, Claim, Delete}

// Config is the section source.poll of walpost.yaml. Start from DefaultConfig.
type Config struct {
	Strategy string `yaml:"strategy"`
	// Interval is the time between two looks at the table, if no notification comes.
	Interval time.Duration `yaml:"interval"`
	// XIDColumn is a column of the type xid8 that every INSERT fills by its default,
	// pg_current_xact_id(). The strategy cursor needs it.
	XIDColumn string `yaml:"xid_column"`
	// Lease is how long a worker has the rows that it claims. It renews its leases before they end.
	Lease time.Duration `yaml:"lease"`
	// Attempts is how often a row may be refused before delivery.on_poison decides; 0 for no limit.
	Attempts int `yaml:"attempts"`
}

// DefaultConfig has every default.
func DefaultConfig() Config {
	return Config{Strategy: Cursor, Interval: 200 * time.Millisecond, Lease: time.Minute, Attempts: 5}
}

// Claims reports whether workers claim rows.
func (c *Config) Claims() bool { return c.Strategy == Claim || c.Strategy == Delete }

// Validate returns what is wrong with the configuration by itself.
func (c *Config) Validate() (found conf.Problems) {
	found.OneOf("source.poll.strategy", c.Strategy, strategies...)
	conf.Range(&found, "source.poll.interval", c.Interval, 5*time.Millisecond, time.Hour)
	conf.Range(&found, "source.poll.lease", c.Lease, 5*time.Second, time.Hour)
	conf.Range(&found, "source.poll.attempts", c.Attempts, 0, 1000)
	const xid = "source.poll.xid_column"
	switch err := pg.CheckName(c.XIDColumn); {
	case c.XIDColumn == "" && c.Strategy == Cursor:
		found.Add(xid, conf.Required, "with source.poll.strategy: cursor. Name a column of the type xid8 (with xid_column: xid, walpost setup prints the SQL that creates it). "+
			"Or set source.poll.strategy to delete, which needs no such column", nil)
	case c.XIDColumn != "" && err != nil:
		found.Add(xid, conf.Usable, err.Error(), c.XIDColumn)
	}
	return found
}

// Settings are all that a Source needs.
type Settings struct {
	Config

	Name  string // of the relay
	DB    pg.Database
	Table pg.Table
	// OrderColumn grows with every row. TimeColumn, if not empty, says when a row was written.
	OrderColumn, TimeColumn string
	// Snapshot is what a first start does with the rows that are there: with "initial" it begins with the
	// oldest, and with a pg.Bound as text behind the bound. With "never" or "" it refuses if there are any.
	Snapshot string
	// Key returns the column that a record's key comes from, "" for none; ID returns the column of the
	// event id.
	ID, Key func(rel *cdc.Relation) string
	// Needs says which columns of the table must be there. An error means that the configuration does
	// not fit the table.
	Needs  func(rel *cdc.Relation) (columns []string, err error)
	Logger zerolog.Logger

	// Bound is told until when records of claimed rows may be sent; the zero time is no limit. Afterwards
	// not one byte may be sent. Unreachable reports whether the newest attempt to connect to a broker has
	// failed. Both may be nil.
	Bound       func(until time.Time)
	Unreachable func() bool
}
