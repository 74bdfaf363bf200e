package cdc

import "errors"

// A Reason says why one event, alone, can never be delivered. Its text is a word of
// delivery.on_poison, a label of a metric and a header of a dead letter, so it never changes.
type Reason string

// The reasons.
const (
	Unroutable    Reason = "unroutable"     // the router makes no record of the row
	TooLarge      Reason = "too_large"      // the record is larger than the topic allows
	InvalidRecord Reason = "invalid_record" // the brokers refuse the record, or the topic lacks the partition that the row asks for
	InvalidTopic  Reason = "invalid_topic"  // the name of the topic is not allowed
)

// Reasons are all reasons.
var Reasons = []Reason{Unroutable, TooLarge, InvalidRecord, InvalidTopic}

// A Refusal is the error of a record that was refused although it was sent alone.
type Refusal struct {
	Reason Reason
	Topic  string
	Err    error
}

func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the brokers' or the client's own error.
func (r *Refusal) Unwrap() error { return r.Err }

// BadBecause is Reason, for callers that ask for behaviour.
func (r *Refusal) BadBecause() Reason { return r.Reason }

// ErrTakenBack is the error of a record that its sender took back before the sink delivered it.
var ErrTakenBack = errors.New("the record was taken back before it was delivered")
