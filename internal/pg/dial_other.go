//go:build !linux

package pg

import "syscall"

func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
