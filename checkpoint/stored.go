package checkpoint

import "fmt"

// Stored is what a store has of a relay.
type Stored struct {
	Rec   *Record          // the newest record; nil for none
	Older []string         // keys of records that are of no use any more
	Halts map[string]*Halt // events that halted a relay, by token
	Skips map[string]*Halt // those of them that a person wants passed over
	// Closed are the tokens of accepted gaps that a person has closed.
	Closed []string
}

// Read picks from the records of a store what it has of the relay name. A record of the relay that
// cannot be read is an error, because a newer walpost may have written it.
func Read(name string, records map[string][]byte) (s Stored, err error) {
	if s.Rec, s.Older, err = newest(name, records); err == nil {
		s.Halts, s.Skips, err = halts(name, records)
	}
	if err != nil {
		return Stored{}, fmt.Errorf("read checkpoint: %w", err)
	}
	s.Closed = closed(name, records)
	return s, nil
}
