package protocol

// A Variant is a way to get the protocol wrong. The checker must find what is wrong with each.
type Variant uint8

const (
	Sound Variant = iota // as it is

	ConfirmEarly     // confirms what is acknowledged and not in the checkpoint yet
	CheckpointEarly  // writes what is sent and not acknowledged yet
	LSNDedupe        // skips rows whose LSN isn't beyond the checkpoint
	IgnoreNext       // sends the first transaction again although a part of it is delivered
	StartAtSlot      // starts at the slot's position instead of the checkpoint's
	NoReread         // trusts the checkpoint that was read before the slot was taken
	SameKey          // lets the holders of one epoch write under one key
	KeepEpoch        // goes on under the old epoch although the first record of the next one may arrive
	IgnoreOthers     // keeps what was received although another process had the slot
	LateIsProgress   // takes a first record that it had given up, and that arrives late, for its progress
	BelieveEmpty     // takes an empty answer for a topic without a checkpoint
	NoSequence       // lets the partition append a batch again that is sent again
	EternalWalsender // never ends the walsender of a client that is gone

	ReadBeforeFence    // reads the checkpoint while the predecessor can still commit
	FenceStandby       // fences while another process has the slot
	UnknownIsAborted   // sends everything again if nobody knows whether it is committed
	UnknownIsCommitted // counts a transaction as committed if nobody knows
	ReadUnsettled      // reads whether a transaction is committed while it can still be committed
	KeepList           // commits what was in flight after a fence, before the checkpoint is read
	CheckpointOutside  // writes the checkpoint after the transaction
	variants
)

var variantNames = [variants]string{
	Sound: "as it is",

	ConfirmEarly:     "confirm before the checkpoint",
	CheckpointEarly:  "checkpoint before the acknowledgement",
	LSNDedupe:        "deduplicate by the row's LSN",
	IgnoreNext:       "forget a transaction's delivered part",
	StartAtSlot:      "start at the slot's position",
	NoReread:         "no second read of the checkpoint",
	SameKey:          "one key per epoch",
	KeepEpoch:        "keep the epoch after a failed takeover",
	IgnoreOthers:     "ignore another holder",
	LateIsProgress:   "a late takeover record taken for progress",
	BelieveEmpty:     "believe an empty read",
	NoSequence:       "batches without sequence numbers",
	EternalWalsender: "a walsender without a timeout",

	ReadBeforeFence:    "read before the fence",
	FenceStandby:       "fence as a standby",
	UnknownIsAborted:   "unknown means aborted",
	UnknownIsCommitted: "unknown means committed",
	ReadUnsettled:      "no fence before an unknown outcome is read",
	KeepList:           "commit between the fence and the read",
	CheckpointOutside:  "a checkpoint outside the transaction",
}

func (v Variant) String() string { return variantNames[v] }

// exactlyOnce reports whether the variant is one of exactly_once.
func (v Variant) exactlyOnce() bool { return v >= ReadBeforeFence }
