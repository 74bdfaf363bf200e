//go:build linux || darwin

package localpg

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// FreePort returns a TCP port on 127.0.0.1 without a listener. It is below the range of ports that
// systems choose themselves, and until this program ends, no other call returns it. So it is still
// free when a server restarts.
func FreePort() (int, error) {
	var last error
	for range 200 {
		port := 20000 + rand.IntN(12000)
		if !reserve(port) {
			last = fmt.Errorf("port %d is reserved", port)
			continue
		}
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			last = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port: %w", last)
}

// reserved has the ports of this program. The file has a byte for each port, and a lock on the byte
// keeps other programs away, also while a server is stopped.
var reserved struct {
	mu    sync.Mutex
	ports map[int]bool
	file  *os.File
}

// reserve reports whether the port is this call's. Without a cache folder, other programs are not
// asked.
func reserve(port int) bool {
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	if reserved.ports[port] {
		return false
	}
	if reserved.file == nil {
		reserved.ports = map[int]bool{}
		if dir, err := CacheDir(); err == nil && mkdirOpen(dir) == nil {
			reserved.file, _ = os.OpenFile(filepath.Join(dir, "ports"), os.O_CREATE|os.O_RDWR, 0o666)
		}
	}
	if reserved.file != nil {
		err := syscall.FcntlFlock(reserved.file.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: int64(port), Len: 1})
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
			return false
		}
	}
	reserved.ports[port] = true
	return true
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
