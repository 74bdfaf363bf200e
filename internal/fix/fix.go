// Package fix says what to do about a problem: a statement, a setting, a command. A Fix stays typed until it is printed,
// because a managed service changes a setting in another way than the user's own server does.
package fix

import (
	"cmp"
	"strings"
)

// A Provider runs a server for the user. The empty Provider is the user.
type Provider string

// The providers of Postgres.
const (
	RDS      Provider = "Amazon RDS"
	Aurora   Provider = "Amazon Aurora"
	CloudSQL Provider = "Cloud SQL"
	Azure    Provider = "Azure Database"
)

// A Fix is a list of steps. The empty Fix says that there is nothing to do.
type Fix []Step

// A Step is one part of a Fix: SQL, a Setting, a Command, a Key or Words.
type Step interface {
	// text is the step as the user of a provider does it.
	text(p Provider) string
}

// Text is the fix as the user of a provider does it: one sentence or statement after the other, each Command on its own line.
func (f Fix) Text(p Provider) string {
	var b strings.Builder
	for i, step := range f {
		if i > 0 {
			_, command := step.(Command)
			_, afterCommand := f[i-1].(Command)
			if command || afterCommand {
				b.WriteByte('\n')
			} else {
				b.WriteByte(' ')
			}
		}
		b.WriteString(step.text(p))
	}
	return b.String()
}

// Words are one sentence or more.
type Words string

func (w Words) text(Provider) string { return string(w) }

// SQL is one statement or more.
type SQL string

func (s SQL) text(Provider) string { return string(s) }

// A Command is for a shell.
type Command string

func (c Command) text(Provider) string { return string(c) }

// A Key is a key of walpost.yaml.
type Key struct{ Name, Value string }

func (k Key) text(Provider) string { return "Set " + k.Name + ": " + k.Value + "." }

// A Setting is a setting of the Postgres server.
type Setting struct {
	Name, Value string
	// Bare is Value as a number in the setting's own unit, if Value has a unit. Providers take nothing else.
	Bare    string
	Note    string // a remark on Value; a provider who has the setting in another way does not need it
	Restart bool   // a reload is not enough
}

// parameters is where each provider has the server's settings.
var parameters = map[Provider]string{
	RDS: "in the DB parameter group", Aurora: "in the DB cluster parameter group",
	CloudSQL: "as a database flag (gcloud sql instances patch)", Azure: "as a server parameter (az postgres flexible-server parameter set)",
}

// exceptions are the settings that a provider has under another name, or not at all.
var exceptions = map[Provider]map[string]string{
	RDS:      {"wal_level": "Set rds.logical_replication = 1 in the DB parameter group; then reboot the instance."},
	Aurora:   {"wal_level": "Set rds.logical_replication = 1 in the DB cluster parameter group; then reboot the writer."},
	CloudSQL: {"wal_level": "Set the database flag cloudsql.logical_decoding = on; the instance restarts."},
	Azure: {
		"wal_level": "Set the server parameter wal_level = logical; then restart the server.",
		// learn.microsoft.com/azure/postgresql, "Replication / Sending Servers": allowed values -1, parameter type read-only.
		"max_slot_wal_keep_size": "Azure does not let you set max_slot_wal_keep_size. Let the storage grow automatically, or set monitor.wal_disk_size and " +
			"monitor.breaker: stop_and_drop_slot, so that the slot is dropped before the disk is full.",
	},
}

// elsewhere is for a server that somebody else may run, such as Supabase, CloudNativePG or Patroni: nothing in the server shows that reliably.
const elsewhere = " (if a provider, an operator or Patroni manages the server: docs/cloud-postgres.md)"

func (s Setting) text(p Provider) string {
	if text, ok := exceptions[p][s.Name]; ok {
		return text
	}
	value := s.Value
	if strings.Trim(value, "0123456789") != "" || value == "" {
		value = "'" + strings.ReplaceAll(value, "'", "''") + "'"
	}
	text := "ALTER SYSTEM SET " + s.Name + " = " + value + "; SELECT pg_reload_conf();"
	if s.Restart {
		text = "ALTER SYSTEM SET " + s.Name + " = " + value + "; then restart Postgres."
	}
	text += elsewhere
	if where, ok := parameters[p]; ok {
		text = "Set " + s.Name + " = " + cmp.Or(s.Bare, s.Value, "''") + " " + where
		if s.Restart {
			text += ", then restart the server"
		}
		text += "."
	}
	return strings.TrimSpace(text + " " + s.Note)
}

// ByWords is a Fix of one sentence or more. It is empty if the text is empty.
func ByWords(text string) Fix {
	if text == "" {
		return nil
	}
	return Fix{Words(text)}
}

// BySQL is a Fix of one statement or more.
func BySQL(sql string) Fix { return Fix{SQL(sql)} }
