//go:build linux || darwin

package localpg

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

// used has the ports that FreePort has returned.
var used struct {
	mu    sync.Mutex
	ports map[int]bool
}

// FreePort returns a TCP port on 127.0.0.1 without a listener. It is below the range of ports that
// systems choose themselves, and until this program ends, no other call returns it. So it is still
// free when a server restarts. Programs with other process ids usually have other ports.
func FreePort() (int, error) {
	const lowest, programs, each = 20000, 12, 1000
	used.mu.Lock()
	defer used.mu.Unlock()
	last := errors.New("all have been used")
	for range 2 * each {
		port := lowest + os.Getpid()%programs*each + rand.IntN(each)
		if used.ports[port] {
			continue
		}
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			last = err
			continue
		}
		if used.ports == nil {
			used.ports = map[int]bool{}
		}
		used.ports[port] = true
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port: %w", last)
}

// OnFreePorts calls start, which takes ports from FreePort, and calls it again if another program
// has taken such a port in the meantime. Postgres and Java use the same words for this.
func OnFreePorts(start func() error) (err error) {
	for range 5 {
		if err = start(); err == nil || !strings.Contains(err.Error(), "already in use") {
			break
		}
	}
	return err
}
