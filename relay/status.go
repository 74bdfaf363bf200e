package relay

import (
	"slices"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/latency"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/recent"
)

// A State is what a person must know first about a relay. If several states hold at one time, the
// worst one is the state. /readyz, /api/status, the metric and the status page show the same state.
type State string

// The states of a relay, worst first.
const (
	Halted       State = "halted"        // needs a person, and goes on so that monitoring sees it
	Stopped      State = "stopped"       // the end, after a clean stop or a fault
	Hung         State = "hung"          // the loop makes no progress, which is a defect: whoever looks at Turned finds this state
	Stalled      State = "stalled"       // events wait, because Kafka does not acknowledge them
	NoCheckpoint State = "no-checkpoint" // the checkpoint cannot be read or written, so nothing is confirmed
	Connecting   State = "connecting"    // opening a session, or waiting to try again
	SlotAtRisk   State = "slot-at-risk"  // events flow, but the slot is lost or soon will be: walpost.Status finds this state
	Standby      State = "standby"       // another process holds the slot or polls the table, and this one waits for it
	CopyingRows  State = "copying"       // publishing rows of the table; the stream follows
	Starting     State = "starting"      // nothing is opened yet
	Draining     State = "draining"      // asked to stop, and waiting for acknowledgements
	Streaming    State = "streaming"     // reading and delivering
)

// States are all states, worst first.
var States = []State{
	Halted, Stopped, Hung, Stalled, NoCheckpoint, Connecting, SlotAtRisk, Standby, CopyingRows, Starting, Draining, Streaming,
}

// Worse reports whether s is worse than other.
func (s State) Worse(other State) bool { return slices.Index(States, s) < slices.Index(States, other) }

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
