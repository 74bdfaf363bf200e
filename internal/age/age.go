// Package age gives times in JSON as the seconds since then, for readers whose clock is another one.
package age

import (
	"encoding/json"
	"time"
)

// A Since is a time that JSON gives as the seconds since then, and as null if it has not come.
type Since struct{ time.Time }

// MarshalJSON returns the seconds since s.
func (s Since) MarshalJSON() ([]byte, error) {
	if s.IsZero() {
		return []byte("null"), nil
	}
	return json.Marshal(max(0, time.Since(s.Time).Seconds()))
}

// UnmarshalJSON takes the seconds since s.
func (s *Since) UnmarshalJSON(text []byte) error {
	var seconds *float64
	if err := json.Unmarshal(text, &seconds); err != nil {
		return err
	}
	if s.Time = (time.Time{}); seconds != nil {
		s.Time = time.Now().Add(-time.Duration(*seconds * float64(time.Second)))
	}
	return nil
}
