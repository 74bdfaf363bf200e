package keeper

import "syscall"

// dieWithParent does nothing, because macOS has no parent-death signal. A server outlives a program
// that is killed together with its guard.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
