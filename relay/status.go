package relay

import (
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
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
// process.
type Status struct {
	State State
	// Ready says that events flow: the relay streams, nothing is stalled, and the checkpoint can be
	// written. Reason says why State is not Streaming; it is "" if State is.
	Ready  bool
	Reason string
	Since  time.Time // of the relay's present State
	// InStream says that the relay reads the stream in a session, also if State is a worse one.
	InStream bool
	// Turned is when the loop last published its state, which it does several times a second. If it
	// is old although the relay should work, the loop hangs.
	Turned time.Time

	// Bad is the event that halted the relay, nil for none. It must not be changed. Waiting is what
	// the halted relay still delivers. It also has what cannot be delivered any more, because it is
	// behind a refused event.
	Bad     *BadEvent
	Waiting []Waiting

	// Stall is what delivery waits for in the state Stalled, nil in any other.
	Stall error

	Identity cdc.Identity // of the newest session; zero before the first
	Opened   time.Time    // when that session began
	Epoch    uint64
	RunID    string // made once and kept in the checkpoint; "" before the first session
	Holder   string // names this process in its checkpoints

	Received   cdc.Position // newest position read
	Safe       cdc.Position // everything up to it is acknowledged
	Checkpoint cdc.Position // durable in the checkpoint store
	Confirmed  cdc.Position // confirmed to the source

	// Accepted are the gaps that a person has accepted and not closed, oldest first: the cleanup removes
	// nothing. It must not be changed.
	Accepted []checkpoint.Accepted

	InFlightEvents int
	InFlightBytes  int
	OldestUnacked  time.Time // commit time of the oldest transaction without acknowledgement; zero for none

	Events          uint64                // acknowledged
	Transactions    uint64                // read to their end
	DeadLetters     map[cdc.Reason]uint64 // sent to the dead letter topic, by reason
	NewestDead      []DeadLetter          // the newest of them, newest first
	Parked          parking.Counts        // what is parked now, also by former processes
	OldestParked    []parking.Parked      // the keys that wait for the oldest events, oldest first
	NewestParked    []DeadLetter          // the newest bad events whose keys this process parked, newest first
	Skipped         uint64                // passed over because walpost skip asked
	Remarks         map[string]uint64     // what the router passed over, by kind
	WindowFull      time.Duration
	Sessions        map[string]uint64 // how sessions ended: stopped, lost, refused, halted
	Latency         latency.Histogram // commit to acknowledgement
	Troubles        []Trouble         // the newest errors, newest first
	Recent          map[string][]Sent // the newest events of the newest topics, newest first
	LastEvent       time.Time         // local time of the newest event read
	LastAck         time.Time         // local time of the newest acknowledgement
	CheckpointError string            // why the checkpoint cannot be written now; "" if it can
}
