package replication

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/pg"
)

// A Config says which database, slot, publication and tables to read, and how. Messages name its fields as walpost.yaml
// does.
type Config struct {
	// DSN is a libpq URI or keyword string; several hosts are tried in order. Unless it says something else in
	// target_session_attrs, only a primary is accepted. It must not ask for another text format than the pinned one.
	DSN string
	// Password, where not empty, is used instead of the DSN's. It is never part of an error or a log line.
	Password string

	// Tables are schema.table, as SQL reads names: folded to lower case unless in double quotes. At least one.
	Tables []string
	Slot   string
	// Publication is made, for Publish in Tables, together with the slot; a Publication that is there is used as it is.
	Publication string
	// Publish is "insert" and, where wanted, "update". Nil: insert only. A publication that lacks one of them is an error.
	Publish []string

	// Create allows Open to make the publication and the slot.
	Create bool
	// SnapshotChosen says that the user wrote what becomes of rows that are there before the slot. Without it Open makes no
	// slot over tables that have rows.
	SnapshotChosen bool
	// SlotWithSnapshot says that the slot is made by OpenExporting, which alone can tell the rows before it: a setup leaves it out.
	SlotWithSnapshot bool
	// Outbox says what a setup makes of the tables beside what the stream needs.
	Outbox Outbox
	// Failover makes the slot one that survives a failover (Postgres 17 and newer).
	Failover bool
	// CreateTimeout bounds one attempt to make the slot, which waits for every transaction that is open. Default 10 minutes.
	CreateTimeout time.Duration

	// ConfirmKeepalives hands keepalives on as positions, so that an idle slot follows the server.
	ConfirmKeepalives bool
	// Messages asks for logical messages (pg_logical_emit_message) too.
	Messages bool
	// WantCatalog fills the catalog fields of every relation, by a query on a connection of its own for each new relation.
	WantCatalog bool

	// Needs says which columns of a table must be there and be published, judged by the table as the catalog has it now.
	// An error means that the configuration does not fit the table. Nil: no column is needed.
	Needs func(rel *cdc.Relation) (columns []string, err error)

	// Advise says what works but costs or threatens something, judged by what a start finds. Each advice is logged once.
	// Nil: nothing is logged.
	Advise func(f *pg.Facts) []Advice

	// ApplicationName is what Postgres shows for our connections. Default: the DSN's, else "walpost".
	ApplicationName string
	// Logger is written to at edges only. The zero value is silent.
	Logger zerolog.Logger
}

// An Advice is something to log at a start, with a hint that says what to do.
type Advice struct{ Text, Hint string }

const defaultCreateTimeout = 10 * time.Minute

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// Validate returns everything that is wrong with the configuration by itself, without a connection. A table's field is source.tables with
// its number where there are several.
func (c *Config) Validate() (found conf.Problems) {
	if c.DSN == "" {
		found.Add("source.dsn", conf.Required, "", nil)
	} else if _, err := c.Connection().Config(); err != nil {
		var of conf.Problems
		if !errors.As(err, &of) {
			of.Try("source.dsn", err)
		}
		found = append(found, of...)
	}
	if len(c.Tables) == 0 {
		found.Add("source.table", conf.Required, "", nil)
	}
	seen := map[Table]bool{}
	for i, s := range c.Tables {
		field := "source.table"
		if len(c.Tables) > 1 {
			field = fmt.Sprintf("source.tables[%d]", i)
		}
		t, err := ParseTable(s)
		found.Try(field, err)
		if err == nil && seen[t] {
			found.Add(field, conf.MustBe, "named once", t.String())
		}
		seen[t] = true
	}
	if !slotName.MatchString(c.Slot) {
		found.Add("source.slot", conf.MustBe, "1 to 63 of a-z, 0-9 and _", c.Slot)
	}
	if err := pg.CheckName(c.Publication); err != nil {
		found.Add("source.publication", conf.Usable, err.Error(), c.Publication)
	}
	if p := slices.Sorted(slices.Values(c.Publish)); len(p) > 0 && !slices.Equal(p, []string{"insert"}) && !slices.Equal(p, []string{"insert", "update"}) {
		found.Add("source.publish", conf.MustBe, "insert, or insert and update", strings.Join(c.Publish, ", "))
	}
	conf.Range(&found, "source.create_timeout", c.CreateTimeout, 0, math.MaxInt64)
	return found
}

// Database returns the database that the DSN names, or libpq's default for it.
func (c *Config) Database() (string, error) { return c.Connection().Name() }

// Connection says how to connect.
func (c *Config) Connection() pg.Database {
	return pg.Database{DSN: c.DSN, Password: c.Password, ApplicationName: c.ApplicationName}
}

// Names are what describes the stream in the catalog.
func (c *Config) Names() pg.Names {
	return pg.Names{Slot: c.Slot, Publication: c.Publication, Tables: c.tables()}
}

// Updates says whether updates are wanted.
func (c *Config) Updates() bool { return slices.Contains(c.Publish, "update") }

// PublishSetting is the publication's parameter publish.
func (c *Config) PublishSetting() string {
	if c.Updates() {
		return "publish = 'insert, update'"
	}
	return "publish = 'insert'"
}

func (c *Config) tables() []Table {
	tables := make([]Table, 0, len(c.Tables))
	for _, s := range c.Tables {
		if t, err := ParseTable(s); err == nil {
			tables = append(tables, t)
		}
	}
	return tables
}

// A Table is the name of a table.
type Table = pg.Table

// ParseTable reads a table's name as SQL does.
func ParseTable(s string) (Table, error) { return pg.ParseTable(s) }
