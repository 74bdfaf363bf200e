//go:build linux || darwin

package keeper

import (
	"strings"
	"testing"
)

// The test binary would run its tests in the child, which would start a child.
func TestAProgramThatDoesNotCallInitGetsNoKeeper(t *testing.T) {
	k, err := New(t.TempDir(), "k-")
	if err == nil || !strings.Contains(err.Error(), "did not call Init") {
		t.Errorf("%v, %v", k, err)
	}
}
