package protocol

const (
	keys      = 2
	processes = 2
	noSlot    = 255
	maxQueue  = 4
)

// A state is everything at one moment. It is comparable, so the zero value of what does not matter any
// more is part of the model's exactness.
type state struct {
	// Postgres. All items are in the WAL from the beginning: for the others, an item that is not written yet is
	// one that was not read yet.
	fork   uint8 // 0 on timeline 1; else, on timeline 2, one more than the items that it kept
	slot   uint8 // confirmed_flush; noSlot if the promoted server lacks the slot
	holder uint8 // whose walsender has the slot; 0 for nobody
	// Kafka: how many rows of each key the log holds. That is enough, because a row is only accepted in
	// order or as a repetition.
	seen [keys]uint8
	dead [maxDead]queues // what dead processes have sent, and the brokers do not have yet
	// The checkpoint topic, and writes that may still arrive there, oldest first
	topic topic
	late  [maxLate]recID
	// The coordinator of exactly_once
	producer uint8 // who initialised the transactional id last; 0 if the coordinator has ended its transaction since
	ending   txn   // the transaction that it was asked to commit

	procs  [processes]proc
	faults uint8 // that may still happen
	dirty  bool  // duplicates may be explained by a crash, a takeover or a failover
}

const (
	maxDead = 3
	maxLate = 4
)

type txn struct {
	asked bool
	rec   recID
	rows  [maxQueue]row
}

type phase uint8

const (
	starting phase = iota // it has read nothing yet. A process that is down is one that takes no step.
	waiting               // it has read the checkpoint, and waits for the slot
	fencing               // exactly_once: it has the slot, and has not fenced
	reading               // it has the slot, and has fenced with exactly_once, and reads the checkpoint again
	saving                // it has the slot, and its first record is under way
	streaming
	draining // a clean stop
	refused  // it has ended, and an operator is needed
)

var phases = [...]string{"starting", "waiting", "fencing", "reading", "saving", "streaming", "draining", "refused"}

// A proc is a process. Process i holds things as i+1; whoever is dead has a higher number.
type proc struct {
	phase phase

	// What an attempt to get the slot has found
	rec   recID // the newest record before the slot was taken; 0 for none
	found found
	base  recID // the newest record when the process took the slot, fenced: what Kafka knew, whatever it read
	own   bool  // nobody had the slot in between

	// What the process is
	begun, contested, frozen bool
	epoch                    uint8
	durable                  recID
	core                     coreID

	// The session: open reports whether the process thinks that it has one. cursor is the next event.
	open   bool
	cursor cursor

	save recID // a record on its way to Kafka
	end  commitState
	q    queues // at_least_once: what the sink holds
}

// A cursor is a place in the stream: in front of event n of an item. A transaction has an event for each
// row, and its commit.
type cursor struct{ item, event uint8 }

// queues are what was sent to the partition of each key and is not acknowledged, in order.
type queues [keys]queue

type queue [maxQueue]entry

// An entry is a row, whether the partition has it, and whether an earlier flight of the process sent it.
type entry uint16

const (
	appended entry = 1 << 8
	former   entry = 1 << 9
)

func (e entry) row() row { return row(e) }

func (q *queue) full() bool { return q[maxQueue-1] != 0 }

func (q *queue) push(e entry) {
	for i := range q {
		if q[i] == 0 {
			q[i] = e
			return
		}
	}
	panic("protocol: a queue is full")
}

func (q *queue) pop() {
	copy(q[:], q[1:])
	q[maxQueue-1] = 0
}
