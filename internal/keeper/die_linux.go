package keeper

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent ends the server if the keeper is killed.
func dieWithParent(attr *syscall.SysProcAttr, s syscall.Signal) { attr.Pdeathsig = s }

// adoptOrphans makes this process the parent of processes whose parent was killed, so that it can wait for them.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
