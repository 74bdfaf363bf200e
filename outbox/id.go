package outbox

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"regexp"
	"sync"
	"time"
)

// newest is the time in the newest id of this process, in units of 2^-12 milliseconds.
var newest struct {
	sync.Mutex
	units uint64
}

// NewID returns a UUID of version 7 (RFC 9562). It is greater than all ids that NewID has returned
// in this process: the 12 bits after the milliseconds are a fraction of a millisecond, and keep
// counting if the clock doesn't advance (section 6.2 of the RFC, method 3).
func NewID() string { return newID(time.Now()) }

func newID(now time.Time) string {
	units := uint64(now.UnixMilli())<<12 | uint64(now.Nanosecond()%1e6)<<12/1e6
	newest.Lock()
	units = max(units, newest.units+1)
	newest.units = units
	newest.Unlock()

	var id [16]byte
	_, _ = rand.Read(id[8:])                                               // never fails
	binary.BigEndian.PutUint64(id[:], units>>12<<16|7<<12|units&(1<<12-1)) // milliseconds, version, fraction
	id[8] = id[8]&0x3f | 0x80                                              // variant
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
