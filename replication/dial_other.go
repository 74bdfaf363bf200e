//go:build !linux

package replication

import "syscall"

func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
