package keeper

import "syscall"

// dieWithParent does nothing, because macOS has no parent-death signal. A server outlives a keeper that is killed.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// adoptOrphans does nothing, because macOS has no subreapers.
func adoptOrphans() {}
