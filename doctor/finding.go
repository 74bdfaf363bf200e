// Package doctor looks at every condition of a run, and says what would fix those that are not met. It changes nothing. What a start needs of a
// database is judged by replication.Config.Conditions and poll.Settings.Conditions; what a start does not look at is judged here.
//
// It isn't an API yet: anything in it may change with any release. The API is the root package, outbox and inbox.
package doctor

import "github.com/walpost/walpost/internal/condition"

// A Finding is what was found about one condition.
type Finding = condition.Finding

// A Verdict says how bad a Finding is.
type Verdict = condition.Verdict

// A Side is the system that a Finding is about.
type Side = condition.Side

// The verdicts and the sides.
const (
	OK, Warn, Fail  = condition.OK, condition.Warn, condition.Fail
	Postgres, Kafka = condition.Postgres, condition.Kafka
	Registry        = condition.Registry
	Store           = condition.Store
)
