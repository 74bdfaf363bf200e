package testenv

import (
	"testing"
	"time"
)

// SameDay waits for a new day in UTC if the present one ends within two minutes. A test that asks the server more than
// once for the day, as with date_trunc('day', now()), begins with it.
func SameDay(t testing.TB) {
	t.Helper()
	if left := time.Until(time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)); left < 2*time.Minute {
		t.Logf("the day ends in %s: the test waits for the next one", left)
		time.Sleep(left + 100*time.Millisecond)
	}
}
