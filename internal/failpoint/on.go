//go:build failpoints

package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

var (
	wanted string
	left   atomic.Int64
)

func init() {
	name, count, _ := strings.Cut(os.Getenv("WALPOST_FAILPOINT"), ":")
	n, _ := strconv.ParseInt(count, 10, 64) // 0 never comes
	wanted = name
	left.Store(n)
}

// Hit kills the process if it is the one that was asked for.
func Hit(name string) {
	if name == wanted && left.Add(-1) == 0 {
		p, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = p.Kill()
		}
		if err != nil {
			panic(err)
		}
		select {} // until it is killed
	}
}
