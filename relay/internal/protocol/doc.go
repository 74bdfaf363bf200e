// Package protocol is walpost's protocol as a model, and a program that explores it in full: the slot,
// the checkpoint, the acknowledgements, the takeover by another process, and the transactions of
// exactly_once. docs/protocol.md says what it promises and what was explored.
//
// A state (state.go) is one comparable value: Postgres, Kafka, what is under way, and two processes.
// model.next lists every step that a state allows: what the servers do and what can happen to them
// (environment.go), what a process does (process.go), and its transactions (exactly.go). Explore
// (explore.go) follows all of them, breadth first, and checks each state (invariants.go). Then it checks
// that a finish can be reached from each state. A violation comes with one of the shortest stories that
// lead to it.
//
// What the relay decides comes from the real code wherever that is pure: flight.Progress, flight.Flight
// and checkpoint.Tracker (core.go), and checkpoint.Read, Judge, First and Follow (records.go). The rest,
// the order of steps in relay/session.go, relay/connect.go, relay/checkpointer.go and relay/stream.go, is
// written again here, and each function names what it repeats.
//
// Time is not modelled: a step that is possible may take as long as it likes. So a frozen process is one
// whose session the server ends before the process takes its next step.
//
// Two things keep the number of states small and leave out no story. States that differ only in names,
// such as which process is which, or in what can make no difference any more, are one (normal.go). And
// steps that nothing else depends on are taken together.
//
// A Variant (variants.go) is a deliberate mistake. The tests hold that each of them is found.
package protocol
