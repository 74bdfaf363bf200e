package relay

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"
)

// newRunID makes a UUID of version 7 (RFC 9562). Debezium makes one at each start of its task.
// walpost makes one with the first checkpoint record only, because a new one would make a second
// delivery differ from the first.
func newRunID(now time.Time) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(now.UnixMilli())<<16)
	rand.Read(b[6:]) // crypto/rand documents that it never fails
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
