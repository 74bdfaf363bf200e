package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/slot"
)

// What walpost status prints, whole, for each kind of slot.
func TestStatusPrintsWhatAPersonNeeds(t *testing.T) {
	const gib = 1 << 30
	fine := func() slot.Status {
		return slot.Status{
			Known: true, Severity: slot.OK, Forecast: slot.Forecast{Exhaustion: math.Inf(1), Limit: slot.ByKeep, Left: 3 * gib, WALRate: 1 << 20},
			Health: slot.Health{
				Slot: "walpost", Database: "shop", Exists: true, Active: true, ActivePID: 77, WALStatus: "reserved", WaitEvent: "WalSenderWaitForWAL",
				RetainedBytes: 16 << 20, UnconfirmedBytes: 2000, SafeBytes: 3 * gib, SafeKnown: true, KeepBytes: 4 * gib, CatalogXminAge: 12,
				Confirmed: 0x16B3748, Restart: 0x16B0000, Server: 0x16B4000, ClockSkew: 1500 * time.Microsecond,
			},
		}
	}
	for _, c := range []struct {
		name   string
		change func(s *slot.Status)
		want   string
	}{
		{"fine, and what is left does not shrink", func(*slot.Status) {}, `
slot         walpost in shop
state        ok
reader       active (pid 77)
wal_status   reserved
retained     16.0 MiB
unconfirmed  2.0 KiB
left         3.0 GiB before the slot can be lost
forecast     max_slot_wal_keep_size is not used up at this rate
WAL          1.0 MiB/s
waits for    WalSenderWaitForWAL
xmin age     12 transactions
confirmed    0/16B3748
restart      0/16B0000
server       0/16B4000
clock        the database's clock minus this machine's clock: 2ms
`},
		{"lost", func(s *slot.Status) {
			s.Severity, s.Reasons = slot.Critical, []string{"the slot is lost (wal_removed): its WAL is gone; walpost recover closes the gap"}
			s.WALStatus, s.Invalidation, s.Limit, s.Exhaustion, s.SafeKnown, s.Restart, s.RetainedBytes = "lost", "wal_removed", slot.ByRemoval, 0, false, 0, -1
			s.Active, s.InactiveFor, s.InactiveAtLeast, s.WaitEvent, s.CatalogXminAge, s.WALRate = false, 90*time.Second, true, "", 0, -1
		}, `
slot         walpost in shop
state        critical
             the slot is lost (wal_removed): its WAL is gone; walpost recover closes the gap
reader       inactive for at least 1m30s
wal_status   lost
retained     unknown
unconfirmed  2.0 KiB
xmin age     0 transactions
confirmed    0/16B3748
server       0/16B4000
clock        the database's clock minus this machine's clock: 2ms
`},
		{"blocked, spilling, and used up soon", func(s *slot.Status) {
			s.Severity, s.Reasons = slot.Warning, []string{"WAL is held back"}
			s.Exhaustion, s.WALStatus, s.SafeBytes, s.WaitEvent = 754.4, "extended", 700<<20, ""
			s.Decoding = slot.DecodingStats{SpillBytes: 5 << 30, SpillTxns: 3}
			s.Blocker = &slot.Blocker{
				Kind: slot.BlockedByTransaction, PID: 42, User: "report", Application: "nightly", Database: "crm", State: "idle in transaction",
				Age: 3 * time.Hour, QueryAge: time.Hour, End: "SELECT pg_terminate_backend(42);",
			}
		}, `
slot         walpost in shop
state        warning
             WAL is held back
reader       active (pid 77)
wal_status   extended
retained     16.0 MiB
unconfirmed  2.0 KiB
left         700.0 MiB before the slot can be lost
forecast     max_slot_wal_keep_size is used up in 12m34s
WAL          1.0 MiB/s
xmin age     12 transactions
spilled      5.0 GiB by 3 transactions
confirmed    0/16B3748
restart      0/16B0000
server       0/16B4000
blocker      transaction of pid 42 (report, nightly) in crm, idle in transaction, for 3h0m0s, its newest statement began 1h0m0s ago
             to end it: SELECT pg_terminate_backend(42);
clock        the database's clock minus this machine's clock: 2ms
`},
		{"without a limit of the server's, bounded by the disk, and not allowed to see blockers", func(s *slot.Status) {
			s.SafeKnown, s.KeepBytes, s.Limit, s.Left, s.Exhaustion, s.WaitEvent = false, -1, slot.ByDisk, 20*gib, 7200, ""
			s.Hidden = "other sessions: GRANT pg_read_all_stats"
		}, `
slot         walpost in shop
state        ok
reader       active (pid 77)
wal_status   reserved
retained     16.0 MiB
unconfirmed  2.0 KiB
left         no limit (max_slot_wal_keep_size is -1): the disk is the limit
disk         20.0 GiB left of monitor.wal_disk_size
forecast     monitor.wal_disk_size is used up in 2h0m0s
WAL          1.0 MiB/s
xmin age     12 transactions
confirmed    0/16B3748
restart      0/16B0000
server       0/16B4000
hidden       other sessions: GRANT pg_read_all_stats
clock        the database's clock minus this machine's clock: 2ms
`},
		{"without any limit", func(s *slot.Status) {
			s.SafeKnown, s.KeepBytes, s.Limit, s.WaitEvent = false, -1, slot.NoLimit, ""
		}, `
slot         walpost in shop
state        ok
reader       active (pid 77)
wal_status   reserved
retained     16.0 MiB
unconfirmed  2.0 KiB
left         no limit (max_slot_wal_keep_size is -1): the disk is the limit
forecast     none: no limit is known (set max_slot_wal_keep_size, or monitor.wal_disk_size)
WAL          1.0 MiB/s
xmin age     12 transactions
confirmed    0/16B3748
restart      0/16B0000
server       0/16B4000
clock        the database's clock minus this machine's clock: 2ms
`},
		{"looked at once", func(s *slot.Status) { s.WALRate, s.WaitEvent = -1, "" }, `
slot         walpost in shop
state        ok
reader       active (pid 77)
wal_status   reserved
retained     16.0 MiB
unconfirmed  2.0 KiB
left         3.0 GiB before the slot can be lost
forecast     needs two looks: --watch 30s
xmin age     12 transactions
confirmed    0/16B3748
restart      0/16B0000
server       0/16B4000
clock        the database's clock minus this machine's clock: 2ms
`},
		{"missing", func(s *slot.Status) {
			s.Exists, s.Severity, s.Reasons = false, slot.Critical, []string{"the slot does not exist"}
		}, `
slot         walpost in shop
state        critical
             the slot does not exist
`},
		{"not to be looked at", func(s *slot.Status) {
			s.Known, s.Severity, s.Reasons = false, slot.Unknown, []string{"monitor slot walpost: connect:\n\tconnection refused"}
		}, `
slot         walpost in shop
state        unknown
             monitor slot walpost: connect: connection refused
`},
	} {
		s := fine()
		c.change(&s)
		var b strings.Builder
		if err := printSlot(&b, s); err != nil {
			t.Fatal(err)
		}
		if got := "\n" + b.String(); got != c.want {
			t.Errorf("%s:%s\nmust be%s", c.name, got, c.want)
		}
	}
}
