package age

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"
)

func TestATimeIsGivenAsItsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for text, at := range map[string]time.Time{"null": {}, "0": now.Add(time.Hour), "90.5": now.Add(-90500 * time.Millisecond)} {
			got, err := json.Marshal(Since{at})
			if err != nil || string(got) != text {
				t.Errorf("%s: %s, %v; want %s", at, got, err, text)
			}
			var back Since
			want := at
			if at.After(now) {
				want = now
			}
			if err := json.Unmarshal(got, &back); err != nil || !back.Equal(want) {
				t.Errorf("%s: %s, %v; want %s", text, back.Time, err, want)
			}
		}
	})
}
