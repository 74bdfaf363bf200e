//go:build !linux

package replication

import "net"

// A tcpSocket does nothing here. See the one of Linux.
type tcpSocket struct{}

func newTCPSocket(net.Conn) *tcpSocket { return nil }

func (*tcpSocket) unheard() bool { return false }
func (*tcpSocket) widen()        {}
func (*tcpSocket) raise()        {}
func (*tcpSocket) lower()        {}
func (*tcpSocket) waiting() int  { return 0 }
