package checkpoint

import (
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// Superseded reports whether rec is of a relay that was replaced by relays of another number of
// shards: its slot was dropped or made again, and the other relays have confirmed the position of
// rec. Then rec counts for nothing, and the relay starts as one without a record.
//
// Where the slot is missing, the other relays have to run. A slot that nobody has read yet is also
// beyond rec, at the position where it was made, and its relay has delivered nothing.
func Superseded(rec *Record, found cdc.Identity) bool {
	if rec == nil {
		return false
	}
	reason := judge(rec, &found)
	if reason != SlotMissing && reason != SlotAhead {
		return false
	}
	others := found.Shards.Others()
	for _, other := range others {
		if other.Confirmed < rec.LSN || found.Shards.Missing(other.Shard) != "" || reason == SlotMissing && other.ActivePID == 0 {
			return false
		}
	}
	return len(others) > 0
}

// takeOver says where a first start begins. If relays with another number of shards deliver the same
// rows, they have to deliver everything before our slot, and then to stop. All slots of our number
// of shards have to exist before that, because nobody else delivers the rows of a missing one.
//
// Everything before the lowest position that the others have confirmed is delivered. What they
// delivered beyond it comes again, in the same order.
func takeOver(found *cdc.Identity) (start cdc.Position, err error) {
	shards, start := &found.Shards, found.SlotFound.Confirmed
	others := shards.Others()
	if len(others) == 0 {
		return start, nil
	}
	waits := func(format string, args ...any) (cdc.Position, error) {
		return 0, fault.Retry(fmt.Errorf("slot %s waits to take over: "+format, append([]any{found.Slot}, args...)...))
	}
	if missing := shards.Missing(shards.Own); missing != "" {
		return waits("slot %s does not exist yet. Start its relay", missing)
	}
	from := others[0].Confirmed
	for _, other := range others {
		if missing := shards.Missing(other.Shard); missing != "" {
			return waits("slot %s exists, and slot %s does not. If everything that they had to deliver is delivered, drop slot %[2]s", other.Slot, missing)
		}
		switch {
		case other.Confirmed >= start:
		case other.ActivePID != 0:
			return waits("the relay of slot %s has confirmed %s of %s", other.Slot, other.Confirmed, start)
		default:
			return waits("the relay of slot %s stopped at %s. Start it again until it has confirmed %s", other.Slot, other.Confirmed, start)
		}
		from = min(from, other.Confirmed)
	}
	// A slot of ours that is not read and is further did not begin, or its relay is down. If it did
	// not begin, the others have more to deliver.
	for _, own := range shards.Slots {
		if own.Of == shards.Own.Of && own.ActivePID == 0 && own.Confirmed > from {
			return waits("slot %s is at %s, and the others are at %s. Start its relay", own.Slot, own.Confirmed, from)
		}
	}
	return from, alone(found, "slot %s waits to take over: ", found.Slot)
}

// alone returns an error while a relay with another number of shards runs.
func alone(found *cdc.Identity, format string, args ...any) error {
	for _, other := range found.Shards.Others() {
		if other.ActivePID != 0 {
			return fault.Retry(fmt.Errorf(format+"slot %s is in use by server process %d, and its relay delivers the same keys. Stop that relay",
				append(args, other.Slot, other.ActivePID)...))
		}
	}
	return nil
}
