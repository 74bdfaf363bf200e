package cdc

import "time"

// Uncommitted is what was sent and is in no transaction that is to be committed.
type Uncommitted struct {
	Records, Bytes int
	Since          time.Time // of the first one
}

// Add counts other, too.
func (o *Uncommitted) Add(other Uncommitted) {
	if o.Since.IsZero() || !other.Since.IsZero() && other.Since.Before(o.Since) {
		o.Since = other.Since
	}
	o.Records, o.Bytes = o.Records+other.Records, o.Bytes+other.Bytes
}
