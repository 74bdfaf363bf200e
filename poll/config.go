// Package poll reads the outbox table by SQL, for databases where logical replication is not to be
// had. A Source gives what a stream would give: transactions of rows, in an order that keeps the
// order of each key.
//
// What a position is, and when it is safe, depends on the strategy. docs/polling-why.md says what each
// strategy promises. cursor.go has the rules of the strategy cursor and the reasons for them, and claim.go
// those of claim and delete.
//
// It isn't an API yet: anything in it may change with any release. The API is the root package, outbox and inbox.
package poll

import (
	"log/slog"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/lib/pgname"
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
	// How walpost finds rows and remembers what it has delivered.
	Strategy string `yaml:"strategy" words:"cursor|claim|delete"`
	// How often walpost polls while there are no new rows.
	Interval time.Duration `yaml:"interval" min:"5ms" max:"1h" example:"1s"`
	// A column `xid8 NOT NULL DEFAULT pg_current_xact_id()`, for the `cursor` strategy.
	XIDColumn string `yaml:"xid_column" example:"xid"`
	// With `claim` and `delete`: how long a worker's claim on rows lasts unless renewed.
	Lease time.Duration `yaml:"lease" min:"5s" max:"1h" example:"30s"`
	// With `claim` and `delete`: how often a row may be refused before `delivery.on_poison` decides.
	// With `0`, it's retried forever.
	Attempts int `yaml:"attempts" min:"0" max:"1000" example:"10"`
}

// DefaultConfig has every default.
func DefaultConfig() Config {
	return Config{Strategy: Cursor, Interval: 200 * time.Millisecond, Lease: time.Minute, Attempts: 5}
}

// Claims reports whether workers claim rows.
func (c *Config) Claims() bool { return c.Strategy == Claim || c.Strategy == Delete }

// Validate returns what is wrong with the keys together. conf.Check has what is wrong with each.
func (c *Config) Validate() (found conf.Problems) {
	const xid = "source.poll.xid_column"
	switch err := pgname.CheckName(c.XIDColumn); {
	case c.XIDColumn == "" && c.Strategy == Cursor:
		found.Add(xid, conf.Required, "with source.poll.strategy: cursor. Name a column of the type xid8 (with xid_column: xid, walpost setup prints the SQL that creates it). "+
			"Or set source.poll.strategy to delete, which needs no such column", nil)
	case c.XIDColumn != "" && err != nil:
		found.Add(xid, conf.Usable, err.Error(), c.XIDColumn)
	}
	return found
}

// Counts says what the positions of the source count. It does not name the table.
func (c *Config) Counts() *cdc.Polled {
	p := &cdc.Polled{Strategy: c.Strategy, Claims: c.Claims()}
	if !p.Claims {
		p.XIDColumn = c.XIDColumn
	}
	return p
}

// Settings are all that a Source needs.
type Settings struct {
	Config

	Name     string // of the relay
	DB       pg.Database
	Database string // its name
	Table    pgname.Table
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
	Needs func(rel *cdc.Relation) (columns []string, err error)
	// Logger is written to at edges only. By default it is slog.Default().
	Logger *slog.Logger

	// Bound is told until when records of claimed rows may be sent; the zero time is no limit. Afterwards
	// not one byte may be sent. Unreachable reports whether the newest attempt to connect to a broker has
	// failed. Both may be nil.
	Bound       func(until time.Time)
	Unreachable func() bool
}
