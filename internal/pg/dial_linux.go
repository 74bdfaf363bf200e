package pg

import (
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged bounds how long sent data may stay unacknowledged. Keepalives alone do not notice a dead peer while
// data is on the way: the kernel would retransmit for a quarter of an hour.
func limitUnacknowledged(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	const limit = keepIdle + keepCount*keepInterval
	return c.Control(func(fd uintptr) {
		// A kernel that refuses it only notices later.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit/time.Millisecond))
	})
}
