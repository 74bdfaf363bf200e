package relay

import (
	"time"

	"github.com/walpost/walpost/cdc"
)

// State says what the relay is doing.
type State string

// The states of a relay.
const (
	Starting    State = "starting"   // nothing opened yet
	Connecting  State = "connecting" // opening a session, or waiting to try again
	CopyingRows State = "copying"    // publishing rows of the table: the stream comes behind
	Streaming   State = "streaming"  // reading and delivering
	Draining    State = "draining"   // asked to stop: taking outstanding acknowledgements
	Halted      State = "halted"     // needs a person; lingering so that it is seen
	Stopped     State = "stopped"
)

// Status is a copy of the relay's state at one moment. Counters count from the start of the process.
type Status struct {
	State State
	// Ready says that events flow: streaming, nothing stalled, the checkpoint is writable. Reason says why not, "" when ready.
	Ready  bool
	Reason string
	Since  time.Time // of the present State
	// Turned is when the loop last published its state, several times a second; an old one while it should work means that it hangs.
	Turned time.Time

	// Bad is the event that the relay is halted by; nil where there is none. It must not be changed. Waiting is what a relay that
	// is halted by an event still delivers, or cannot deliver any more because it is behind a refused event.
	Bad     *BadEvent
	Waiting []Waiting

	Identity cdc.Identity // of the newest session; zero before the first
	Epoch    uint64
	RunID    string // made once, kept in the checkpoint; empty before the first session
	Holder   string // names this process in its checkpoints

	Received   cdc.Position // newest position read
	Safe       cdc.Position // everything up to it is acknowledged
	Checkpoint cdc.Position // durable in the checkpoint store
	Confirmed  cdc.Position // told to the source

	InFlightEvents int
	InFlightBytes  int
	OldestUnacked  time.Time // commit time of the oldest unacknowledged transaction; zero when there is none

	Events          uint64            // acknowledged
	Transactions    uint64            // read whole
	Skipped         uint64            // events passed over, because walpost skip asked
	Remarks         map[string]uint64 // what the router passed over, by kind
	WindowFull      time.Duration
	Sessions        map[string]uint64 // how sessions ended: stopped, lost, refused, halted
	Latency         Histogram         // commit to acknowledgement
	LastError       string            // newest error that ended a session or a checkpoint write
	LastErrorAt     time.Time
	Troubles        []Trouble         // the newest errors, newest first
	Recent          map[string][]Sent // the newest events of the newest topics, newest first
	LastEvent       time.Time         // local time of the newest event read
	LastAck         time.Time         // local time of the newest acknowledgement
	CheckpointError string            // why the checkpoint cannot be written now; "" when it can
}
