package relay

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// newRunID makes a UUID of version 7 (RFC 9562): the kind that Debezium makes at each start of its task. Here one is made for the first
// checkpoint record only; a new one at each start would make a redelivered record differ from the first delivery.
func newRunID(now time.Time) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(now.UnixMilli())<<16)
	rand.Read(b[6:]) // never fails, crypto/rand says
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
