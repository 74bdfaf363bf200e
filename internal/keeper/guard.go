//go:build linux || darwin

package keeper

import (
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guard waits until the program has ended or has called Close. Then it stops the server and removes
// the folder. Its result is the exit code.
func guard(folder string) int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	var last order
	for dec := json.NewDecoder(os.Stdin); dec.Decode(&last) == nil; {
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, os.NewFile(3, "alive")) // ends when no process of the server is left
	}()
	if last.PID != 0 {
		_ = syscall.Kill(last.PID, last.Quit)
		_ = syscall.Kill(last.PID, syscall.SIGCONT) // it may have been stopped by a test
	}
	select {
	case <-gone:
	case <-time.After(last.Grace):
		if last.PID != 0 {
			_ = syscall.Kill(-last.PID, syscall.SIGKILL)
		}
		select {
		case <-gone:
		case <-time.After(10 * time.Second):
		}
	}
	removeSharedMemory(last.PidFile)
	if os.RemoveAll(folder) != nil {
		return 1
	}
	return 0
}

// removeSharedMemory removes the small System V segment by which a Postgres recognises children of
// a former postmaster. A postmaster that ends by itself removes the segment and the file. Line 7 of
// the file has the key and the id of the segment.
func removeSharedMemory(pidFile string) {
	b, err := os.ReadFile(pidFile)
	lines := strings.Split(string(b), "\n")
	if err != nil || len(lines) < 7 {
		return
	}
	if f := strings.Fields(lines[6]); len(f) == 2 {
		if id, err := strconv.Atoi(f[1]); err == nil {
			_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		}
	}
}
