package keeper

import "syscall"

// dieWithParent ends the server even if the program and its guard are killed together. Linux sends
// the signal when the thread that started the server ends. The threads of a Go program end with the
// program, except those of a goroutine that ends locked to one.
func dieWithParent(attr *syscall.SysProcAttr, s syscall.Signal) { attr.Pdeathsig = s }
