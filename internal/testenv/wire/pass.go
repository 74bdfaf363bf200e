package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"
)

// pass forwards both ways until either side ends.
func (w *Wire) pass(client, server net.Conn) {
	var both sync.WaitGroup
	defer both.Wait()
	var asked sync.Map // the API of each correlation id that waits for an answer
	up, down := w.bytes(w.status), w.bytes(nil)
	if w.kafka {
		up = w.frames(func(frame []byte) bool { // API key, version, correlation id
			if len(frame) < 8 {
				return true
			}
			api := int16(binary.BigEndian.Uint16(frame))
			asked.Store(binary.BigEndian.Uint32(frame[4:]), api)
			switch api {
			case APIProduce:
				return w.tapped(Produce)
			case APIEndTxn:
				return w.tapped(EndTxn)
			}
			return true
		})
		down = w.frames(func(frame []byte) bool {
			if len(frame) < 4 {
				return true
			}
			api, ok := asked.LoadAndDelete(binary.BigEndian.Uint32(frame))
			return !ok || w.answer(api.(int16))
		})
	}
	both.Go(func() {
		up(server, client)
		if !w.keeps(server) {
			_ = server.Close() // twice does no harm
			_ = client.Close() // a client that does not read must learn of it, too
		}
	})
	both.Go(func() {
		defer client.Close() //nolint:errcheck // twice does no harm
		down(client, server)
	})
}

// status reports whether a piece of a replication connection may pass. A standby status is CopyData of 34 bytes, and clients
// write it alone.
func (w *Wire) status(piece []byte) bool {
	return !bytes.HasPrefix(piece, []byte("d\x00\x00\x00\x26r")) || w.tapped(Status)
}

// bytes copies what comes while let agrees.
func (w *Wire) bytes(let func([]byte) bool) func(net.Conn, net.Conn) {
	return func(to, from net.Conn) {
		for buf := make([]byte, 64<<10); ; {
			n, err := from.Read(buf)
			if n > 0 && let != nil && !let(buf[:n]) {
				return
			}
			if !w.write(to, buf[:n]) || err != nil {
				return
			}
		}
	}
}

// frames copies frames, each behind its length, while let agrees.
func (w *Wire) frames(let func(frame []byte) bool) func(net.Conn, net.Conn) {
	return func(to, from net.Conn) {
		for buf := make([]byte, 4); ; {
			if _, err := io.ReadFull(from, buf[:4]); err != nil {
				return
			}
			n := int(binary.BigEndian.Uint32(buf[:4]))
			if cap(buf) < 4+n {
				buf = append(make([]byte, 0, 4+n), buf[:4]...)
			}
			buf = buf[:4+n]
			if _, err := io.ReadFull(from, buf[4:]); err != nil || !let(buf[4:]) {
				return
			}
			if !w.write(to, buf) {
				return
			}
		}
	}
}

// write writes b when packets pass, and as fast as they may.
func (w *Wire) write(to net.Conn, b []byte) (ok bool) {
	for {
		<-w.passes()
		w.mu.Lock()
		rate := w.rate
		w.mu.Unlock()
		n := len(b)
		if rate > 0 {
			n = min(n, max(1, rate/50))
			time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
		}
		if _, err := to.Write(b[:n]); err != nil {
			return false
		}
		if b = b[n:]; len(b) == 0 {
			return true
		}
	}
}
