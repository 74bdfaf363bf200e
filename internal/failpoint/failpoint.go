// Package failpoint ends the program at a named moment, for scripts/faults: a build with the tag failpoints and the variable
// WALPOST_FAILPOINT=name:count kills itself by SIGKILL the count-th time that it comes to the point. In any other build, Hit is
// an empty function that the compiler removes.
package failpoint

// The points. Each is the moment before or after a step that has to be durable.
const (
	Send      = "send"      // before a record is handed to the Kafka client
	Ack       = "ack"       // a record is acknowledged, and the relay does not know
	Save      = "save"      // before a checkpoint is written, or committed together with its events
	Saved     = "saved"     // after that, and the relay does not know
	Confirm   = "confirm"   // before a position is confirmed to Postgres
	Confirmed = "confirmed" // after that
)
