package pg

import (
	"net"
	"time"
)

// A connection whose other end is gone without a word is noticed after about half a minute, idle or not.
const (
	keepIdle     = 15 * time.Second
	keepInterval = 5 * time.Second
	keepCount    = 3
)

func dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{
		Timeout:         timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount},
		Control:         limitUnacknowledged,
	}
}
