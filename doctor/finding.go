// Package doctor looks at every precondition of a run, and says what would fix those that are not met. It changes nothing.
package doctor

import (
	"strings"

	"github.com/walpost/walpost/internal/fix"
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
	Postgres Side = "postgres"
	Kafka    Side = "kafka"
)

// A Finding is what was found about one precondition, and what would fix it.
type Finding struct {
	Side    Side
	Name    string // of the precondition, the same in every run
	Verdict Verdict
	Why     string // what was found: a clause without a full stop
	Fix     fix.Fix
	// Provider runs the server that the Finding is about. The text of Fix depends on it.
	Provider fix.Provider
}

// FixText is what to do, as the user of the provider does it. It is empty if there is nothing to do.
func (f *Finding) FixText() string { return strings.TrimSpace(f.Fix.Text(f.Provider)) }
