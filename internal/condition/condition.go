// Package condition has the findings about the conditions of a run. There is one list for each kind of source: a start refuses what the list
// marks as needed at a start, and walpost check prints all of it.
package condition

import (
	"fmt"
	"slices"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// A Verdict says how bad a Finding is.
type Verdict string

// The verdicts. Nothing can run while one Finding has the verdict Fail.
const (
	OK   Verdict = "ok"
	Warn Verdict = "warn" // works, but has a cost or a risk
	Fail Verdict = "FAIL" // does not work
)

// A Side is the system that a Finding is about.
type Side string

// The sides.
const (
	Postgres  Side = "postgres"
	Kafka     Side = "kafka"
	Registry  Side = "registry"
	Store     Side = "store"
	Collector Side = "collector"
)

// A Need says how a start takes a Fail.
type Need uint8

// The needs.
const (
	NotAtStart    Need = iota // only walpost check fails
	Start                     // the start fails
	Misconfigured             // the start fails, and the configuration must change
	Losing                    // the slot exists, so events are lost to it
	Privilege                 // a privilege of the role, which may come back by itself
)

// A Finding is what was found about one condition, and what would fix it. One with a Need is the error of a start.
type Finding struct {
	Side    Side
	Name    string // of the condition, the same in every run
	Verdict Verdict
	Why     string // what was found: a clause without a full stop
	Fix     fix.Fix
	Need    Need
	// Provider runs the server that the Finding is about. The text of Fix depends on it.
	Provider fix.Provider
}

// Slot is the Name of the condition that concerns the slot itself.
const Slot = "slot"

// FixText is what to do, as the user of the provider does it. It is empty if there is nothing to do.
func (f *Finding) FixText() string { return strings.TrimSpace(f.Fix.Text(f.Provider)) }

func (f *Finding) Error() string { return f.Why }

// Commands are those that the hint of Fault may contain.
func (f *Finding) Commands() []fault.Advice {
	commands := []fault.Advice{{Command: fault.Command("recover")}}
	for _, step := range f.Fix {
		switch step := step.(type) {
		case fix.SQL:
			if f.Name != Slot { // to drop a slot, or to make one, can lose events
				commands = append(commands, fault.Advice{Command: string(step)})
			}
		case fix.Command:
			commands = append(commands, fault.Advice{Command: string(step)})
		}
	}
	return commands
}

// Fault gives the error its behaviour. running says that a session rested on the condition already.
func (f *Finding) Fault(running bool) error {
	hint := f.FixText()
	switch {
	case f.Need == Privilege && running:
		return fault.Retry(fault.WithHint(f, hint))
	case f.Need == Privilege:
		return fault.Repair(fault.WithHint(f, hint))
	case f.Need == Losing || running:
		return fault.Person(f, hint)
	case f.Need == Misconfigured:
		return fault.Config(f, hint)
	}
	return fault.WithHint(f, hint)
}

// Unmet are the findings that a start refuses, in their order.
func Unmet(found []Finding) (unmet []*Finding) {
	for i := range found {
		if found[i].Verdict == Fail && found[i].Need != NotAtStart {
			unmet = append(unmet, &found[i])
		}
	}
	return unmet
}

// A List collects findings about one side.
type List struct {
	Side     Side
	Provider fix.Provider
	Found    []Finding
}

// Add adds a finding. Why is a format.
func (l *List) Add(verdict Verdict, name string, by fix.Fix, why string, args ...any) *Finding {
	l.Found = append(l.Found, Finding{Side: l.Side, Name: name, Verdict: verdict, Why: fmt.Sprintf(why, args...), Fix: by, Provider: l.Provider})
	return &l.Found[len(l.Found)-1]
}

// OK says that a condition is met.
func (l *List) OK(name, why string, args ...any) { l.Add(OK, name, nil, why, args...) }

// Warn says that something works, but has a cost or a risk.
func (l *List) Warn(name string, by fix.Fix, why string, args ...any) {
	l.Add(Warn, name, by, why, args...)
}

// Fail says that something does not work that a start does not need.
func (l *List) Fail(name string, by fix.Fix, why string, args ...any) {
	l.Add(Fail, name, by, why, args...)
}

// Unmet says that something is missing that a start needs.
func (l *List) Unmet(need Need, name string, by fix.Fix, why string, args ...any) {
	l.Add(Fail, name, by, why, args...).Need = need
}

// Has reports whether there is a finding of that name.
func (l *List) Has(name string) bool {
	return slices.ContainsFunc(l.Found, func(f Finding) bool { return f.Name == name })
}

// Met is OK if nothing was found about the condition.
func (l *List) Met(name, why string, args ...any) {
	if !l.Has(name) {
		l.OK(name, why, args...)
	}
}

// Version judges the server's version, and reports whether walpost supports it.
func (l *List) Version(s *pg.Server) bool {
	if s.Version < pg.MinVersion {
		l.Unmet(Start, "version", fix.ByWords("Upgrade Postgres to 14 or newer."),
			"Postgres is version %d.%d; 14 is the oldest version that walpost supports", s.Version/10000, s.Version%10000)
		return false
	}
	l.OK("version", "Postgres %d.%d", s.Version/10000, s.Version%10000)
	return true
}

// TableName is the name of the condition that a table exists.
func TableName(t pgname.Table) string { return "table " + t.String() }

var kinds = map[string]string{"v": "view", "m": "materialized view", "f": "foreign table"}

// Table judges whether there is a table that walpost can read, and reports whether there is. missing is what to do if it is missing.
func (l *List) Table(need Need, t *pg.TableFacts, database string, missing fix.Fix) bool {
	name := TableName(t.Table)
	switch {
	case !t.Exists() && len(t.Similar) > 0:
		l.Unmet(need, name, fix.Fix{fix.Key{Name: "source.table", Value: "'" + t.Similar[0] + "'"}, fix.Words("In double quotes, a name keeps its case.")},
			"table %s does not exist, but %s does", t.Table, strings.Join(t.Similar, ", "))
	case !t.Exists():
		l.Unmet(need, name, missing, "table %s does not exist in database %s", t.Table, database)
	case t.Kind != "r" && t.Kind != "p":
		l.Unmet(need, name, fix.ByWords("Set source.table to an ordinary or partitioned table."), "%s is a %s, not a table", t.Table, kinds[t.Kind])
	case t.Persistence == "u":
		l.Unmet(need, name, fix.BySQL("ALTER TABLE "+t.Table.SQL()+" SET LOGGED;"), "table %s is UNLOGGED: its rows are not in the WAL, and a crash of the server removes them", t.Table)
	case t.Persistence == "t":
		l.Unmet(need, name, fix.ByWords("Set source.table to a permanent table."), "table %s is temporary: only its session sees its rows", t.Table)
	default:
		return true
	}
	return false
}

// Columns judges whether a table fits the router, and has the columns that needs names. It returns those that
// the table has; fits is false if needs refuses the table. The table can lack a column that needs names: see Router.Needs.
func (l *List) Columns(t *pg.TableFacts, needs func(*cdc.Relation) ([]string, error)) (wanted []string, fits bool) {
	name := "columns of " + t.Table.String()
	wanted, err := needs(t.Relation)
	if err != nil {
		l.Unmet(Misconfigured, name, fix.ByWords(fault.Hint(err)), "%s does not fit the configuration: %s", t.Table, err)
		return nil, false
	}
	wanted = slices.DeleteFunc(wanted, func(c string) bool {
		absent := t.Relation.Index(c) < 0
		if absent {
			l.Warn(name, fix.BySQL(fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s jsonb;", t.Table.SQL(), pgname.QuoteIdent(c))),
				"table %s has no column %s, from which router.table.fields.additional.placement takes headers: records lack them", t.Table, c)
		}
		return absent
	})
	return wanted, true
}

// Some is a list that does not become longer than a line.
func Some(names []string) string {
	if n := len(names); n > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), n-3)
	}
	return strings.Join(names, ", ")
}
