package pg

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
)

// A Database says how to connect to a database.
type Database struct {
	// DSN is a libpq URI or keyword string; several hosts are tried in order. Unless it says something else in
	// target_session_attrs, only a primary is accepted. It must not ask for another text format than the pinned one.
	DSN string
	// Password, where not empty, is used instead of the DSN's. It is never part of an error or a log line.
	Password string
	// PasswordFile is read for every connection, where not empty, so that a new password needs no restart.
	PasswordFile string
	// PasswordCommand, where not empty, prints the password. It runs for every connection.
	PasswordCommand []string
	// RDSIAM says that the password is a token of RDS, signed for every connection.
	RDSIAM bool
	// ApplicationName is what Postgres shows for our connections. Default: the DSN's, else "walpost".
	ApplicationName string
	// Administrator says that the role sets up another role for walpost. So no hint offers to set it up.
	Administrator bool
}

const defaultConnectTimeout = 10 * time.Second

// Versions of the server that decide something.
const (
	MinVersion      = 140000
	StandbyVersion  = 160000 // logical decoding on a standby
	FailoverVersion = 170000
)

// Name returns the database that the DSN names, or libpq's default for it.
func (d Database) Name() (string, error) {
	cc, err := d.Config()
	if err != nil {
		return "", err
	}
	return cmp.Or(cc.Database, cc.User), nil
}

// A pin is a setting that every connection has, whatever the role's or the database's defaults are. Without it they
// change the text of what pgoutput sends: dates, floats, bytea and intervals.
type pin struct {
	name, value string
	same        func(value string) bool // another spelling of the same
}

func equals(values ...string) func(string) bool {
	return func(v string) bool {
		return slices.ContainsFunc(values, func(want string) bool { return strings.EqualFold(strings.TrimSpace(v), want) })
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

// Config reads the DSN, refuses what contradicts the pinned settings, and pins them.
func (d Database) Config() (*pgconn.Config, error) {
	cc, err := pgconn.ParseConfig(d.DSN)
	if err == nil && misread(d.DSN, cc) {
		err = errMisread
	}
	if err != nil {
		// A DSN that was good can become wrong: it may name files, such as sslrootcert.
		return nil, fault.Repair(fault.Config(conf.Problems{{Field: "source.dsn", Want: parseProblem(err)}},
			"Write a libpq URI such as postgres://walpost@db.internal:5432/shop?sslmode=verify-full, or keywords such as host=db.internal dbname=shop."))
	}
	password, err := conf.Secret(d.Password).Or(d.PasswordFile)
	if err != nil {
		return nil, fault.Repair(fmt.Errorf("source.password_file: %w", err))
	}
	if password != "" {
		cc.Password = password
	}
	given := map[string]string{}
	for name, value := range cc.RuntimeParams {
		given[strings.ToLower(name)] = value
	}
	options, err := optionSettings(given["options"])
	if err != nil {
		return nil, fault.Config(conf.Problems{{Field: "source.dsn", Want: "options: " + err.Error()}}, "")
	}
	var found conf.Problems
	for _, p := range pins {
		key := strings.ToLower(p.name)
		for _, from := range []struct{ where, value string }{
			{"the DSN or the environment", given[key]},
			{"options (of the DSN or PGOPTIONS)", options[key]},
			{"PGDATESTYLE", map[string]string{"datestyle": os.Getenv("PGDATESTYLE")}[key]},
		} {
			if from.value != "" && !p.same(from.value) {
				found.Try("source.dsn", fmt.Errorf("%s must be %s on walpost's connections (got %q from %s)", p.name, p.value, from.value, from.where))
			}
		}
		for name := range cc.RuntimeParams {
			if strings.EqualFold(name, p.name) {
				delete(cc.RuntimeParams, name)
			}
		}
		cc.RuntimeParams[p.name] = p.value
	}
	if d.RDSIAM {
		found.Try("source.rds_iam", tokenGoesTo(cc))
	}
	if len(found) > 0 {
		return nil, fault.Config(found, "Leave the setting out: walpost sets it for its own connections only.")
	}
	delete(cc.RuntimeParams, "replication")
	switch {
	case d.ApplicationName != "":
		cc.RuntimeParams["application_name"] = d.ApplicationName
	case given["application_name"] == "":
		cc.RuntimeParams["application_name"] = "walpost"
	}
	// A pause between two statements is no reason to be cut off, whatever the role's defaults are.
	cc.RuntimeParams["idle_session_timeout"] = "0"

	cc.ConnectTimeout = cmp.Or(cc.ConnectTimeout, defaultConnectTimeout)
	cc.DialFunc = dialer(cc.ConnectTimeout).DialContext
	if !d.saysTarget() {
		cc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	return cc, nil
}

// saysTarget reports whether the user wrote target_session_attrs: pgconn does not tell its default from "any". In a
// service file it does not count.
func (d Database) saysTarget() bool {
	return strings.Contains(d.DSN, "target_session_attrs") || os.Getenv("PGTARGETSESSIONATTRS") != ""
}

var errMisread = errors.New("a part of the DSN may be a password in the wrong place")

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

var (
	optionWord    = regexp.MustCompile(`(?s)(?:\\.|[^\s\v])+`)
	optionEscaped = regexp.MustCompile(`(?s)\\(.)`)
)

func optionWords(s string) []string {
	words := optionWord.FindAllString(s, -1)
	for i, w := range words {
		words[i] = optionEscaped.ReplaceAllString(w, "$1")
	}
	return words
}

// Millis reads a setting that Postgres counts in milliseconds.
func Millis(s string) time.Duration {
	n, _ := strconv.ParseInt(s, 10, 64)
	return time.Duration(n) * time.Millisecond
}
