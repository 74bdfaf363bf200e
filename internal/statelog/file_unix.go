//go:build unix

package statelog

import (
	"os"

	"golang.org/x/sys/unix"
)

// errLocked says that another process holds the lock.
var errLocked error = unix.EWOULDBLOCK

// lockFile locks the file until it is closed, or fails at once.
func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// syncDir makes a rename in the directory durable.
func syncDir(d *os.File) error { return d.Sync() }
