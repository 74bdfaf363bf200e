package keeper

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent covers the case that the keeper itself is killed.
func dieWithParent(attr *syscall.SysProcAttr, s syscall.Signal) { attr.Pdeathsig = s }

// adoptOrphans makes this process the parent of those whose parent was killed, so that it can wait for them.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
