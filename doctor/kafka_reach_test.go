package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
)

// A listener that takes connections but no login isn't a broker that is down.
func TestAnAnswerOfAnotherKindIsNoSilence(t *testing.T) {
	for want, err := range map[string]error{
		"listener.security.protocol.map": fmt.Errorf("login: %w", kerr.IllegalSaslState),
		"Start the broker":               fmt.Errorf("dial: %w", kerr.LeaderNotAvailable),
	} {
		if got := string(unreachable(err)); !strings.Contains(got, want) {
			t.Errorf("%v: %s", err, got)
		}
	}
}
