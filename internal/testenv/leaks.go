package testenv

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// MainWithoutLeaks is Main, and fails if goroutines are left after the shared servers have ended.
func MainWithoutLeaks(m *testing.M) int {
	code := Main(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			code = 1
		}
	}
	return code
}

// Incompressible returns n bytes that no codec makes smaller, the same ones each time.
func Incompressible(n int) []byte {
	out := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range out {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		out[i] = byte(x)
	}
	return out
}
