package statelog

import (
	"os"

	"golang.org/x/sys/windows"
)

// errLocked says that another process holds the lock.
var errLocked error = windows.ERROR_LOCK_VIOLATION

// lockFile locks the file until it is closed, or fails at once.
func lockFile(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{})
}

// syncDir does nothing: Windows cannot sync a directory, and NTFS writes a rename to its journal.
func syncDir(*os.File) error { return nil }
