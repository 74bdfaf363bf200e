package replication

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/logicalmsg"
	"github.com/walpost/walpost/internal/pg"
)

// A Config says which database, slot, publication and tables to read, and how: the section source of walpost.yaml. Start
// from DefaultConfig.
type Config struct {
	// The database, as a libpq URI. For failover, list several hosts. walpost connects to a standby
	// only with `target_session_attrs`. If `--dsn` or `WALPOST_DSN` has another user or a password, the
	// file's password isn't used.
	//
	// It must not ask for another text format than the pinned one.
	DSN conf.Secret `yaml:"dsn" example:"postgres://walpost@db.internal:5432/shop?sslmode=verify-full"`
	// A file with the DSN. Read only at the start.
	DSNFile string `yaml:"dsn_file" example:"/run/secrets/dsn"`
	// The role's password, for a DSN without one.
	Password conf.Secret `yaml:"password" example:"secret"`
	// A file with the password.
	PasswordFile string `yaml:"password_file" example:"/run/secrets/pg"`
	// A program, with its arguments, that prints the password. It runs for every connection.
	PasswordCommand []string `yaml:"password_command" example:"[/usr/local/bin/pg-token, --user, walpost]"`
	// Log in with an Amazon RDS token, signed for every connection. See
	// [cloud-postgres.md](cloud-postgres.md#amazon-rds).
	RDSIAM bool `yaml:"rds_iam"`

	// The outbox, as `schema.table`. Names are lowercased unless in double quotes.
	Table string `yaml:"table" example:"public.outbox"`
	// Several outboxes, instead of `source.table`.
	Tables []string `yaml:"tables" example:"[public.outbox, sales.outbox]"`
	// [Logical messages](write-events.md) that are events.
	Messages logicalmsg.Config `yaml:"messages"`
	// The replication slot. Each relay on a server needs its own.
	Slot string `yaml:"slot" pattern:"^[a-z0-9_]{1,63}$" want:"1 to 63 of a-z, 0-9 and _" example:"shop_outbox"`
	// The publication. Each relay on a database needs its own.
	Publication string `yaml:"publication" example:"shop_outbox"`
	// The operations in a created publication. With `update`, a row is published again when its primary
	// key changes, as in Debezium.
	Publish []string `yaml:"publish" words:"insert|update" example:"[insert, update]"`
	// Create the publication and the slot if they're missing.
	Create bool `yaml:"create"`
	// [Rows from before the first start](backfill.md#publish-the-existing-rows): `initial`
	// publishes them, and `after <bound>` leaves out those up to a bound that `walpost run` prints.
	// Without either, walpost refuses to start for the first time if there are rows. `never` gives
	// up an unfinished snapshot, and lets `walpost setup --make-slot` leave the rows out.
	Snapshot string `yaml:"snapshot" words:"|never|initial" pattern:"^(never|initial|after [0-9]+/[0-9]+)?$" example:"after 7391234567890123456/4242"`
	// A column with increasing values, such as an identity. It orders rows that one statement wrote
	// and, if the server keeps no commit times, all rows that are read from the table.
	OrderColumn string `yaml:"order_column" example:"id"`
	// The column with each row's time (without a zone: in UTC), for the cleanup, and for `recover` if the
	// server keeps no commit times.
	TimeColumn string `yaml:"time_column" example:"created_at"`
	// Create a slot that survives a failover. Needs Postgres 17.
	Failover bool `yaml:"failover"`
	// Let keepalives advance an idle slot. Set `false` for Postgres forks whose keepalives run ahead of
	// the data.
	ConfirmKeepalives bool `yaml:"confirm_keepalives"`

	// Outbox says what a setup makes of the tables beside what the stream needs.
	Outbox Outbox `yaml:"-"`
	// CreateTimeout bounds one attempt to make the slot, which waits for every transaction that is open. Default 10 minutes.
	CreateTimeout time.Duration `yaml:"-"`

	// Needs says which columns of a table must be there and be published, judged by the table as the catalog has it now.
	// An error means that the configuration does not fit the table. Nil: no column is needed.
	Needs func(rel *cdc.Relation) (columns []string, err error) `yaml:"-"`

	// ApplicationName is what Postgres shows for our connections. Default: the DSN's, else "walpost".
	ApplicationName string `yaml:"-"`
	// Logger is written to at edges only. By default it is slog.Default().
	Logger *slog.Logger `yaml:"-"`
}

const defaultCreateTimeout = 10 * time.Minute

// DefaultConfig has every default. The DSN and a table have none.
func DefaultConfig() Config {
	return Config{
		Slot: "walpost", Publication: "walpost", Publish: []string{"insert"}, Create: true, ConfirmKeepalives: true,
		CreateTimeout: defaultCreateTimeout, Messages: logicalmsg.Config{Format: logicalmsg.Row},
	}
}

// ReadSecrets replaces the name of the DSN's file with what the file holds. Validate tells what is wrong with a file. The file of
// the password is read for every connection.
func (c *Config) ReadSecrets() {
	dsn, _ := c.DSN.Or(c.DSNFile)
	c.DSN, c.DSNFile = conf.Secret(dsn), ""
}

// ForgetPassword removes everything that gives a password, but for the DSN.
func (c *Config) ForgetPassword() {
	c.Password, c.PasswordFile, c.PasswordCommand, c.RDSIAM = "", "", nil, false
}

// AllTables is Table or Tables.
func (c *Config) AllTables() []string {
	if c.Table != "" {
		return append([]string{c.Table}, c.Tables...)
	}
	return c.Tables
}

// tableless reports whether logical messages are the only events.
func (c *Config) tableless() bool { return len(c.AllTables()) == 0 }

var passwordInDSN = regexp.MustCompile(`(?i)^[a-z]+://[^/@:]*:[^/@]+@|[?&\s]password\s*=|^password\s*=`)

// Validate returns what is wrong with the keys together, and with texts that have a syntax, without a connection. conf.Check
// has what is wrong with each key. A table's field is source.tables with its number if there are several.
func (c Config) Validate() (found conf.Problems) {
	if c.Table != "" && len(c.Tables) > 0 {
		found.Add("source.tables", conf.Contradicts, "source.table: set only one of the two", nil)
		c.Table = ""
	}
	c.DSN.Check(&found, "source.dsn", c.DSNFile)
	c.Password.Check(&found, "source.password", c.PasswordFile)
	inFile, passwordKey := c.DSNFile != "", "source.password"
	if c.Password == "" {
		passwordKey = "source.password_file"
	}
	c.ReadSecrets()
	c.validatePasswords(&found)
	if (c.Password != "" || c.PasswordFile != "") && passwordInDSN.MatchString(string(c.DSN)) {
		found.Add(passwordKey, conf.Contradicts, "the password in source.dsn: set only one of the two", nil)
	}
	if c.DSN != "" {
		c.validateDSN(&found)
	} else if !inFile {
		found.Add("source.dsn", conf.Required, "", nil)
	}
	c.validateTables(&found)
	c.Messages.Validate(&found)
	if err := pgname.CheckName(c.Publication); err != nil {
		found.Add("source.publication", conf.Usable, err.Error(), c.Publication)
	}
	if p := slices.Sorted(slices.Values(c.Publish)); len(p) > 0 && !slices.Equal(p, []string{"insert"}) && !slices.Equal(p, []string{"insert", "update"}) {
		found.Add("source.publish", conf.MustBe, "insert, or insert and update", strings.Join(c.Publish, ", "))
	}
	if pg.IsBound(c.Snapshot) {
		_, err := pg.ParseBound(c.Snapshot)
		found.Try("source.snapshot", err)
	} else {
		found.OneOf("source.snapshot", c.Snapshot, "", "never", "initial")
	}
	return found
}

// validatePasswords adds what gives a second password.
func (c *Config) validatePasswords(found *conf.Problems) {
	var ways []string
	if c.Password != "" || c.PasswordFile != "" {
		ways = append(ways, "source.password")
	} else if passwordInDSN.MatchString(string(c.DSN)) {
		ways = append(ways, "the password in source.dsn")
	}
	for _, way := range []struct {
		field string
		set   bool
	}{{"source.password_command", len(c.PasswordCommand) > 0}, {"source.rds_iam", c.RDSIAM}} {
		switch {
		case way.set && len(ways) > 0:
			found.Add(way.field, conf.Contradicts, ways[0]+": set only one of the two", nil)
		case way.set:
			ways = append(ways, way.field)
		}
	}
}

func (c *Config) validateDSN(found *conf.Problems) {
	db := c.Connection()
	db.PasswordFile = "" // its problems are found
	_, err := db.Config()
	var of conf.Problems
	if !errors.As(err, &of) {
		of.Try("source.dsn", err)
	}
	*found = append(*found, of...)
}

func (c *Config) validateTables(found *conf.Problems) {
	all := c.AllTables()
	switch {
	case len(all) > 0:
	case !c.Messages.On():
		found.Add("source.table", conf.Required, "", nil)
	case c.Copies():
		found.Add("source.snapshot", conf.MustBe, "never without source.table, because messages are in no table", c.Snapshot)
	}
	seen := map[pgname.Table]bool{}
	for i, s := range all {
		field := "source.table"
		if len(all) > 1 {
			field = fmt.Sprintf("source.tables[%d]", i)
		}
		t, err := pgname.ParseTable(s)
		found.Try(field, err)
		if err == nil && seen[t] {
			found.Add(field, conf.MustBe, "named once", t.String())
		}
		seen[t] = true
	}
}

// Database returns the database that the DSN names, or libpq's default for it.
func (c *Config) Database() (string, error) { return c.Connection().Name() }

// Connection says how to connect.
func (c *Config) Connection() pg.Database {
	return pg.Database{
		DSN: string(c.DSN), Password: string(c.Password), PasswordFile: c.PasswordFile, PasswordCommand: c.PasswordCommand, RDSIAM: c.RDSIAM,
		ApplicationName: c.ApplicationName, Administrator: c.Outbox.Role != "",
	}
}

// Names are what describes the stream in the catalog.
func (c *Config) Names() pg.Names {
	return pg.Names{Slot: c.Slot, Publication: c.Publication, Tables: c.tables()}
}

// updates says whether updates are wanted.
func (c *Config) updates() bool { return slices.Contains(c.Publish, "update") }

// publishable is the configuration of a publication that Open makes. It publishes no updates if a table has no replica
// identity, because the application's UPDATE of that table would fail.
func (c *Config) publishable(f *pg.Facts) *Config {
	for i := range f.Tables {
		if t := &f.Tables[i]; t.Exists() && !t.Identified() {
			inserts := *c
			inserts.Publish = []string{"insert"}
			return &inserts
		}
	}
	return c
}

// publishSetting is the publication's parameter publish.
func (c *Config) publishSetting() string {
	if c.updates() {
		return "publish = 'insert, update'"
	}
	return "publish = 'insert'"
}

func (c *Config) tables() []pgname.Table {
	var tables []pgname.Table
	for _, s := range c.AllTables() {
		if t, err := pgname.ParseTable(s); err == nil {
			tables = append(tables, t)
		}
	}
	return tables
}
