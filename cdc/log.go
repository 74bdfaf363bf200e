package cdc

import "time"

// An Anchor is a place in the log of parked events, the parking topic, as a checkpoint keeps it. A
// relay that starts reads the log from there on. The records before it may be deleted.
type Anchor struct {
	Topic  string `json:"topic"`         // its name
	ID     string `json:"id,omitzero"`   // its topic id in hexadecimal digits; "" before Kafka 2.8
	Offset int64  `json:"offset"`        // of the first record that is still needed
	Open   int    `json:"open,omitzero"` // number of events that were parked and neither delivered nor dropped
}

// LogState is what the brokers know of the log, as of an Open or a Read.
type LogState struct {
	ID      string // the topic id, as in Anchor
	Missing bool   // the topic does not exist; then the other fields are zero
	Start   int64  // offset of the first record that is left
	End     int64  // offset behind the last record
	Next    int64  // offset behind the last record that was read
}

// Appended is the end of one append to the log.
type Appended struct {
	Ticket Ticket
	Record *Record
	Offset int64 // of the record in the log, if Err is nil
	// Err is nil if the record's transaction is committed. Otherwise it is a *Refusal: the brokers
	// refuse this record alone, and the log goes on behind it.
	Err error
	// Latency is the time from Record.Committed to the commit of the append by this machine's clock.
	// It is never negative.
	Latency time.Duration
}

// Pending is a record that was appended to the log, and of which nobody knows whether its
// transaction is committed.
type Pending struct {
	Record *Record
	Ticket Ticket
}
