package relay

import (
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/internal/latency"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/recent"
)

// A Sent is an event that was acknowledged. A Trouble is an error, and what to do about it.
type (
	Sent    = recent.Sent
	Trouble = recent.Trouble
)

// Status is a copy of the relay's state at one moment. Counters count from the start of the
// process. Its tags are the names in /api/status, which gives the rest of the fields in another form.
type Status struct {
	State State `json:"state"`
	// Ready says that events flow: the relay streams, nothing is stalled, and the checkpoint can be
	// written. Reason says why State is not Streaming; it is "" if State is.
	Ready  bool      `json:"ready"`
	Reason string    `json:"reason"`
	Since  age.Since `json:"since_seconds"` // of the relay's present State
	// InStream says that the relay reads the stream in a session, also if State is a worse one.
	InStream bool `json:"-"`
	// Turned is when the loop last published its state, which it does several times a second. If it
	// is old although the relay should work, the loop hangs.
	Turned time.Time `json:"-"`

	// Bad is the event that halted the relay, nil for none. It must not be changed. Waiting is what
	// the halted relay still delivers. It also has what cannot be delivered any more, because it is
	// behind a refused event.
	Bad     *BadEvent `json:"-"`
	Waiting []Waiting `json:"-"`

	// Stall is what delivery waits for in the state Stalled, nil in any other.
	Stall error `json:"-"`

	Identity cdc.Identity `json:"-"` // of the newest session; zero before the first
	Opened   time.Time    `json:"-"` // when that session began
	Epoch    uint64       `json:"epoch"`
	RunID    string       `json:"run_id"` // made once and kept in the checkpoint; "" before the first session
	Holder   string       `json:"holder"` // names this process in its checkpoints

	Received   cdc.Position `json:"-"` // newest position read
	Safe       cdc.Position `json:"-"` // everything up to it is acknowledged
	Checkpoint cdc.Position `json:"-"` // durable in the checkpoint store
	Confirmed  cdc.Position `json:"-"` // confirmed to the source

	// Accepted are the gaps that a person has accepted and not closed, oldest first: the cleanup removes
	// nothing. It must not be changed.
	Accepted []checkpoint.Accepted `json:"-"`

	InFlight   InFlight      `json:"in_flight"`
	WindowFull time.Duration `json:"-"`

	Events       uint64            `json:"events"`       // acknowledged
	Transactions uint64            `json:"transactions"` // read to their end
	Skipped      uint64            `json:"skipped"`      // passed over because walpost skip asked
	Remarks      map[string]uint64 `json:"remarks"`      // what the router passed over, by kind
	Sessions     map[string]uint64 `json:"sessions"`     // how sessions ended: stopped, lost, refused, halted
	Latency      latency.Histogram `json:"latency"`      // commit to acknowledgement

	DeadLetters  map[cdc.Reason]uint64 `json:"-"` // sent to the dead letter topic, by reason
	NewestDead   []DeadLetter          `json:"-"` // the newest of them, newest first
	Parked       parking.Counts        `json:"-"` // what is parked now, also by former processes
	OldestParked []parking.Parked      `json:"-"` // the keys that wait for the oldest events, oldest first
	NewestParked []DeadLetter          `json:"-"` // the newest bad events whose keys this process parked, newest first

	Troubles []Trouble         `json:"errors"` // the newest errors, newest first
	Recent   map[string][]Sent `json:"recent"` // the newest events of the newest topics, newest first

	LastEvent       age.Since `json:"last_event_seconds_ago"` // local time of the newest event read
	LastAck         age.Since `json:"last_ack_seconds_ago"`   // local time of the newest acknowledgement
	CheckpointError string    `json:"checkpoint_error"`       // why the checkpoint cannot be written now; "" if it can
}

// InFlight is what is sent and not acknowledged.
type InFlight struct {
	Events int       `json:"events"`
	Bytes  int       `json:"bytes"`
	Oldest age.Since `json:"oldest_seconds"` // commit time of the oldest transaction without acknowledgement; zero for none
}
