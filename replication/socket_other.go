//go:build !linux

package replication

import "net"

// A tcpSocket does nothing here. See the one of Linux.
type tcpSocket struct{}

func newTCPSocket(net.Conn) *tcpSocket { return nil }

func (*tcpSocket) resting()     {}
func (*tcpSocket) raise()       {}
func (*tcpSocket) lower()       {}
func (*tcpSocket) waiting() int { return 0 }
