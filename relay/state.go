package relay

import (
	"fmt"
	"slices"
	"time"
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

// A stage is where a Run is. The loop is in one stage at a time, and a trigger takes it to the next
// one. The stage decides what the loop may do. Status shows the stage, and decides nothing.
type stage string

const (
	atStart   stage = "start"
	atConnect stage = "connect"   // opening a session, or waiting to try again
	atUnread  stage = "unread"    // the same, because the store of checkpoints cannot be read
	atWait    stage = "wait"      // the session waits for another process
	atResume  stage = "resume"    // the session has begun, and nothing is read from it yet
	atCopy    stage = "copy"      // the phase is copying
	atStream  stage = "stream"    // the phase is streaming
	atDrain   stage = "drain"     // the run ends
	atHalt    stage = "halt"      // the run ends with a fault that needs a person
	atClosed  stage = "closed"    // after drain
	atLinger  stage = "linger"    // after halt
	atEnd     stage = "end"       // Run returns
	asItIs    stage = "unchanged" // after a trigger that comes too late to change anything
)

// A trigger takes the loop from one stage to another.
type trigger string

const (
	begins  trigger = "the first attempt begins"
	fails   trigger = "an attempt fails"
	noStore trigger = "the checkpoint cannot be read"
	inUse   trigger = "another process holds the slot"
	opens   trigger = "the session begins"
	follows trigger = "parked events must be read first"
	copies  trigger = "rows come next"
	flows   trigger = "the stream comes next"
	loses   trigger = "the session is lost"
	stops   trigger = "a stop, or a fault that ends the process"
	halts   trigger = "a fault that needs an operator"
	closes  trigger = "everything is closed"
	ends    trigger = "Run returns"
)

// A reading is what new events are read from.
type reading string

const (
	readsNothing reading = "nothing"
	readsTables  reading = "the tables"
	readsStream  reading = "the stream"
)

// A sending is what the sink may be given.
type sending string

const (
	sendsNothing sending = "nothing"
	sendsFlight  sending = "in flight"
	sendsNew     sending = "new events"
)

// A stageRules says what holds in a stage.
type stageRules struct {
	stage    stage
	shown    State
	covered  bool // a stall, or a checkpoint that cannot be written, is shown instead
	reads    reading
	sends    sending
	confirms bool // what is durable in a checkpoint, as long as there is a session
	ending   bool // no later stage reads
}

// stages are all stages, in the order of a run. docs/architecture.md shows this table.
var stages = []stageRules{
	{stage: atStart, shown: Starting, covered: true, reads: readsNothing, sends: sendsNothing},
	{stage: atConnect, shown: Connecting, covered: true, reads: readsNothing, sends: sendsFlight},
	{stage: atUnread, shown: NoCheckpoint, covered: true, reads: readsNothing, sends: sendsFlight},
	{stage: atWait, shown: Standby, covered: true, reads: readsNothing, sends: sendsFlight},
	{stage: atResume, shown: Connecting, covered: true, reads: readsNothing, sends: sendsFlight, confirms: true},
	{stage: atCopy, shown: CopyingRows, covered: true, reads: readsTables, sends: sendsNew, confirms: true},
	{stage: atStream, shown: Streaming, covered: true, reads: readsStream, sends: sendsNew, confirms: true},
	{stage: atDrain, shown: Draining, covered: true, reads: readsNothing, sends: sendsFlight, confirms: true, ending: true},
	{stage: atHalt, shown: Halted, reads: readsNothing, sends: sendsFlight, confirms: true, ending: true},
	{stage: atClosed, shown: Draining, covered: true, reads: readsNothing, sends: sendsNothing, ending: true},
	{stage: atLinger, shown: Halted, reads: readsNothing, sends: sendsNothing, ending: true},
	{stage: atEnd, shown: Stopped, reads: readsNothing, sends: sendsNothing, ending: true},
}

var (
	noSession = []stage{atConnect, atUnread, atWait}
	inSession = []stage{atResume, atCopy, atStream}
	anyEnd    = []stage{atDrain, atHalt, atClosed, atLinger}
	anyOther  = slices.Concat([]stage{atStart}, noSession, inSession)
)

// moves are all that can happen. A trigger that comes in a stage of which it has no move is a defect
// of the loop.
var moves = []struct {
	on   trigger
	from []stage
	to   stage
}{
	{begins, []stage{atStart}, atConnect},
	{fails, noSession, atConnect},
	{noStore, noSession, atUnread},
	{inUse, noSession, atWait},
	{inUse, anyEnd, asItIs},
	{opens, noSession, atResume},
	{follows, inSession, atResume},
	{copies, []stage{atResume}, atCopy},
	{flows, []stage{atResume, atCopy}, atStream},
	{loses, inSession, atConnect},
	{loses, []stage{atDrain, atHalt}, asItIs},
	{stops, anyOther, atDrain},
	{halts, anyOther, atHalt},
	{halts, []stage{atHalt}, atHalt},
	{halts, []stage{atLinger}, atLinger},
	{closes, []stage{atDrain}, atClosed},
	{closes, []stage{atHalt}, atLinger},
	{ends, []stage{atClosed, atLinger}, atEnd},
}

// A course is where the run is.
type course struct {
	at     *stageRules // of the stage
	reason string      // why the relay is not ready, as far as the stage tells it
}

// rules returns the rules of s.
func (s stage) rules() *stageRules {
	return &stages[slices.IndexFunc(stages, func(r stageRules) bool { return r.stage == s })]
}

// closed reports whether the sink is closed.
func (r *stageRules) closed() bool { return r.ending && r.sends == sendsNothing }

// after is the stage that on leads to from s, or asItIs.
func (s stage) after(on trigger) stage {
	for _, m := range moves {
		if m.on == on && slices.Contains(m.from, s) {
			return m.to
		}
	}
	panic(fmt.Sprintf("relay: %s, in the stage %q", on, s))
}

// to takes the loop to the next stage, and says at once why the relay is not ready.
func (l *loop) to(on trigger, reason string) {
	l.now = time.Now()
	if next := l.at.stage.after(on); next != asItIs {
		l.at, l.reason = next.rules(), reason
	}
	l.publish()
}

// ending reports whether the relay reads no more.
func (c *course) ending() bool { return c.at.ending }
