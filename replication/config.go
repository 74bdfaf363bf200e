package replication

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pgname"
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

	// ApplicationName is what Postgres shows for our connections. Default: the DSN's, else "walpost".
	ApplicationName string
	// Logger is written to at edges only. The zero value is silent.
	Logger zerolog.Logger
}

const (
	minVersion      = 140000
	standbyVersion  = 160000 // logical decoding on a standby
	failoverVersion = 170000

	defaultCreateTimeout  = 10 * time.Minute
	defaultConnectTimeout = 10 * time.Second
)

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// Validate returns everything that is wrong with the configuration by itself, without a connection. A table's field is source.tables with
// its number where there are several.
func (c *Config) Validate() fault.Problems {
	var found fault.Problems
	if c.DSN == "" {
		found.Add("source.dsn", "must be set")
	} else if _, err := c.connConfig(); err != nil {
		var of fault.Problems
		if !errors.As(err, &of) {
			of.Add("source.dsn", "%v", err)
		}
		found = append(found, of...)
	}
	if len(c.Tables) == 0 {
		found.Add("source.table", "must be set")
	}
	seen := map[Table]bool{}
	for i, s := range c.Tables {
		field := "source.table"
		if len(c.Tables) > 1 {
			field = fmt.Sprintf("source.tables[%d]", i)
		}
		t, err := ParseTable(s)
		switch {
		case err != nil:
			found.Add(field, "%v", err)
		case seen[t]:
			found.Add(field, "%s is named twice", t)
		}
		seen[t] = true
	}
	if !slotName.MatchString(c.Slot) {
		found.Add("source.slot", "must be 1 to 63 of a-z, 0-9 and _ (got %q)", c.Slot)
	}
	if err := pgname.Check(c.Publication); err != nil {
		found.Add("source.publication", "%v (got %q)", err, c.Publication)
	}
	for i, o := range c.Publish {
		if o != "insert" && o != "update" || slices.Contains(c.Publish[:i], o) {
			found.Add("source.publish", "must be insert, or insert and update (got %q)", strings.Join(c.Publish, ", "))
			break
		}
	}
	if len(c.Publish) > 0 && !slices.Contains(c.Publish, "insert") {
		found.Add("source.publish", "must hold insert (got %q)", strings.Join(c.Publish, ", "))
	}
	if c.CreateTimeout < 0 {
		found.Add("source.create_timeout", "must not be negative (got %s)", c.CreateTimeout)
	}
	return found
}

// Database returns the database that the DSN names, or libpq's default for it.
func (c *Config) Database() (string, error) {
	cc, err := c.connConfig()
	if err != nil {
		return "", err
	}
	if cc.Database == "" {
		return cc.User, nil
	}
	return cc.Database, nil
}

// updates says whether updates are wanted.
func (c *Config) updates() bool { return slices.Contains(c.Publish, "update") }

// publishSetting is the publication's parameter publish.
func (c *Config) publishSetting() string {
	if c.updates() {
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

// A pin is a setting that every connection has, whatever the role's or the database's defaults are. Without it they
// change the text of what pgoutput sends: dates, floats, bytea and intervals.
type pin struct {
	name, value string
	same        func(value string) bool // another spelling of the same
}

func equals(values ...string) func(string) bool {
	return func(v string) bool {
		for _, want := range values {
			if strings.EqualFold(strings.TrimSpace(v), want) {
				return true
			}
		}
		return false
	}
}

var pins = []pin{
	{"client_encoding", "UTF8", equals("UTF8", "UTF-8", "unicode")},
	// The second part of DateStyle says how ambiguous input is read; output with ISO does not depend on it.
	{"DateStyle", "ISO", func(v string) bool { first, _, _ := strings.Cut(v, ","); return equals("ISO")(first) }},
	{"TimeZone", "UTC", equals("UTC", "Etc/UTC")},
	{"IntervalStyle", "postgres", equals("postgres")},
	// Every value above 0 prints the shortest exact form.
	{"extra_float_digits", "3", equals("1", "2", "3")},
	{"bytea_output", "hex", equals("hex")},
	// A row security policy must not run in our name, nor hide rows: it is an error then.
	{"row_security", "off", equals("off", "false", "0", "no")},
}

// connConfig reads the DSN, refuses what contradicts the pinned settings, and pins them.
func (c *Config) connConfig() (*pgconn.Config, error) {
	cc, err := pgconn.ParseConfig(c.DSN)
	if err != nil {
		return nil, fault.Config(fault.Problems{{Field: "source.dsn", Text: parseProblem(err)}},
			"Write a libpq URI such as postgres://walpost@db.internal:5432/shop?sslmode=verify-full, or keywords such as host=db.internal dbname=shop.")
	}
	if c.Password != "" {
		cc.Password = c.Password
	}
	given := map[string]string{}
	for name, value := range cc.RuntimeParams {
		given[strings.ToLower(name)] = value
	}
	options, err := optionSettings(given["options"])
	if err != nil {
		return nil, fault.Config(fault.Problems{{Field: "source.dsn", Text: "options: " + err.Error()}}, "")
	}
	var found fault.Problems
	for _, p := range pins {
		key := strings.ToLower(p.name)
		for _, from := range []struct{ where, value string }{
			{"the DSN or the environment", given[key]},
			{"options (of the DSN or PGOPTIONS)", options[key]},
			{"PGDATESTYLE", map[string]string{"datestyle": os.Getenv("PGDATESTYLE")}[key]},
		} {
			if from.value != "" && !p.same(from.value) {
				found.Add("source.dsn", "%s must be %s on walpost's connections (got %q from %s)", p.name, p.value, from.value, from.where)
			}
		}
		for name := range cc.RuntimeParams {
			if strings.EqualFold(name, p.name) {
				delete(cc.RuntimeParams, name)
			}
		}
		cc.RuntimeParams[p.name] = p.value
	}
	if len(found) > 0 {
		return nil, fault.Config(found, "Leave the setting out: walpost sets it for its own connections only.")
	}
	delete(cc.RuntimeParams, "replication")
	switch {
	case c.ApplicationName != "":
		cc.RuntimeParams["application_name"] = c.ApplicationName
	case given["application_name"] == "":
		cc.RuntimeParams["application_name"] = "walpost"
	}
	// A pause between two statements is no reason to be cut off, whatever the role's defaults are.
	cc.RuntimeParams["idle_session_timeout"] = "0"

	if cc.ConnectTimeout == 0 {
		cc.ConnectTimeout = defaultConnectTimeout
	}
	cc.DialFunc = dialer(cc.ConnectTimeout).DialContext
	if !c.saysTarget() {
		cc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	return cc, nil
}

// saysTarget reports whether the user wrote target_session_attrs: pgconn does not tell its default from "any". In a
// service file it does not count.
func (c *Config) saysTarget() bool {
	return strings.Contains(c.DSN, "target_session_attrs") || os.Getenv("PGTARGETSESSIONATTRS") != ""
}

// parseProblem is what is wrong with a DSN, without any part of the DSN that could be a piece of a password.
func parseProblem(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		text = text[i+len("`: "):]
	}
	var parse *pgconn.ParseConfigError
	switch {
	case !errors.As(err, &parse), strings.HasPrefix(text, "failed to parse as"), strings.HasPrefix(text, "invalid port"):
		return "must be a libpq URI or keyword string (special characters in a URI's password are written as %40 and the like)"
	}
	return strings.TrimPrefix(text, "failed to ")
}

// optionSettings reads the settings of a command line as libpq's options has it: "-c name=value --name=value", with
// backslashes before blanks that belong to a value.
func optionSettings(options string) (map[string]string, error) {
	settings := map[string]string{}
	words := optionWords(options)
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch {
		case word == "-c" || word == "--":
			if i++; i == len(words) {
				return nil, fmt.Errorf("%s is followed by nothing", word)
			}
			word = words[i]
		case strings.HasPrefix(word, "-c"), strings.HasPrefix(word, "--"):
			word = word[2:]
		default:
			continue // a switch that sets nothing we pin; the server judges it
		}
		name, value, _ := strings.Cut(word, "=")
		settings[strings.ToLower(strings.ReplaceAll(name, "-", "_"))] = value
	}
	return settings, nil
}

func optionWords(s string) []string {
	var words []string
	var word strings.Builder
	in := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case ' ', '\t', '\n', '\r', '\v', '\f':
			if in {
				words = append(words, word.String())
				word.Reset()
				in = false
			}
		default:
			if c == '\\' && i+1 < len(s) {
				i++
				c = s[i]
			}
			word.WriteByte(c)
			in = true
		}
	}
	if in {
		words = append(words, word.String())
	}
	return words
}

// millis is a setting that Postgres counts in milliseconds.
func millis(s string) time.Duration {
	n, _ := strconv.ParseInt(s, 10, 64)
	return time.Duration(n) * time.Millisecond
}
