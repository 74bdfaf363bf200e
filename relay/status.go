package relay

import (
	"time"

	"github.com/walpost/walpost/cdc"
)

// State says what the relay is doing.
type State string

// The states of a relay.
const (
	Starting    State = "starting"   // nothing is opened yet
	Connecting  State = "connecting" // opening a session, or waiting to try again
	CopyingRows State = "copying"    // publishing rows of the table; the stream follows
	Streaming   State = "streaming"  // reading and delivering
	Draining    State = "draining"   // asked to stop, and waiting for acknowledgements
	Halted      State = "halted"     // needs a person, and goes on so that monitoring sees it
	Stopped     State = "stopped"
)

// Status is a copy of the relay's state at one moment. Counters count from the start of the
// process.
type Status struct {
	State State
	// Ready says that events flow: the relay streams, nothing is stalled, and the checkpoint can be
	// written. Reason says why the relay is not ready; it is "" for a ready one.
	Ready  bool
	Reason string
	Since  time.Time // of the present State
	// Turned is when the loop last published its state, which it does several times a second. If it
	// is old although the relay should work, the loop hangs.
	Turned time.Time

	// Bad is the event that halted the relay, nil for none. It must not be changed. Waiting is what
	// the halted relay still delivers. It also has what cannot be delivered any more, because it is
	// behind a refused event.
	Bad     *BadEvent
	Waiting []Waiting

	Identity cdc.Identity // of the newest session; zero before the first
	Epoch    uint64
	RunID    string // made once and kept in the checkpoint; "" before the first session
	Holder   string // names this process in its checkpoints

	Received   cdc.Position // newest position read
	Safe       cdc.Position // everything up to it is acknowledged
	Checkpoint cdc.Position // durable in the checkpoint store
	Confirmed  cdc.Position // confirmed to the source

	InFlightEvents int
	InFlightBytes  int
	OldestUnacked  time.Time // commit time of the oldest transaction without acknowledgement; zero for none

	Events          uint64            // acknowledged
	Transactions    uint64            // read to their end
	Skipped         uint64            // passed over because walpost skip asked
	Remarks         map[string]uint64 // what the router passed over, by kind
	WindowFull      time.Duration
	Sessions        map[string]uint64 // how sessions ended: stopped, lost, refused, halted
	Latency         Histogram         // commit to acknowledgement
	Troubles        []Trouble         // the newest errors, newest first
	Recent          map[string][]Sent // the newest events of the newest topics, newest first
	LastEvent       time.Time         // local time of the newest event read
	LastAck         time.Time         // local time of the newest acknowledgement
	CheckpointError string            // why the checkpoint cannot be written now; "" if it can
}
