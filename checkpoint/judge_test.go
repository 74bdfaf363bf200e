package checkpoint

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// judged is a record at 0/2000 on timeline 3 and the source that it fits.
func judged() (*Record, *cdc.Identity) {
	rec := &Record{
		Version: version, Name: "shop.walpost", Epoch: 7, SystemID: "111", Timeline: 3, Slot: "walpost", Database: "shop", Position: 0x2000,
		Published: &Published{Published: publishes(), LSN: 0x1E00}, CommitTime: looked.Add(time.Hour),
	}
	rec.Published.Time = looked
	found := &cdc.Identity{
		SystemID: "111", Timeline: 3, Database: "shop", Slot: "walpost", Server: 0x5000,
		History:   []cdc.Fork{{Timeline: 1, End: 0x800}, {Timeline: 2, End: 0x1000}},
		SlotFound: cdc.SlotState{Exists: true, Confirmed: 0x1F00, Restart: 0x1000, WALStatus: "reserved"},
		Published: publishes(),
	}
	return rec, found
}

// looked is when the record's publication was looked at.
var looked = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// descended puts the source on timeline 5, whose history left timeline 3 at end.
func descended(f *cdc.Identity, end cdc.LSN) {
	f.Timeline = 5
	f.History = append(f.History, cdc.Fork{Timeline: 3, End: end}, cdc.Fork{Timeline: 4, End: end + 0x100})
}

// bySchema makes r remember that the first table was also published by its schema.
func bySchema(r *Record) {
	t := &r.Published.Tables[0]
	t.Entries = append([]cdc.PublishedEntry{{By: cdc.PublishedBySchema, OID: 5, XMin: 900}}, t.Entries...)
}

// altered is found with another xmin of its publication.
func altered(f *cdc.Identity) { f.Published.XMin++ }

var judgements = []struct {
	what     string
	change   func(rec *Record, found *cdc.Identity)
	none     bool // no record
	start    cdc.Position
	reason   Reason // "" for no refusal
	from, to cdc.Position
	says     string // the whole error
	slot     bool   // going on takes a new slot
}{
	{what: "all as it was", start: 0x2000},
	{what: "the slot at the record: stopped in an orderly way", start: 0x2000, change: func(_ *Record, f *cdc.Identity) { f.SlotFound.Confirmed = 0x2000 }},
	{what: "the slot far behind the record: the server crashed", start: 0x2000, change: func(_ *Record, f *cdc.Identity) { f.SlotFound.Confirmed = 0x900 }},
	{what: "the server at the record", start: 0x2000, change: func(_ *Record, f *cdc.Identity) { f.Server = 0x2000 }},
	{what: "WAL that may soon go", start: 0x2000, change: func(_ *Record, f *cdc.Identity) { f.SlotFound.WALStatus = "unreserved" }},
	{what: "a slot held by another walsender", start: 0x2000, change: func(_ *Record, f *cdc.Identity) { f.SlotFound.Active, f.SlotFound.ActivePID = true, 7 }},
	{what: "a slot created again where nothing was committed since", start: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.SlotFound.Created, f.SlotFound.Confirmed = true, 0x2000
	}},
	{what: "promoted behind the record", start: 0x2000, change: func(_ *Record, f *cdc.Identity) { descended(f, 0x3000) }},
	{what: "promoted at the record", start: 0x2000, change: func(_ *Record, f *cdc.Identity) { descended(f, 0x2000) }},
	{what: "a transaction delivered in part", start: 0x2000, change: func(r *Record, f *cdc.Identity) {
		r.Next = &Next{Commit: 0x2400, CommitEnd: 0x2430, Rows: 2}
		f.Server = 0x2430
	}},
	{what: "a transaction delivered in part, whose end was not read, and then promoted", start: 0x2000, change: func(r *Record, f *cdc.Identity) {
		r.Next = &Next{Commit: 0x2400, Rows: 2}
		descended(f, 0x2430)
	}},
	{what: "a transaction of which nothing was delivered, and the server without it", start: 0x2000, change: func(r *Record, f *cdc.Identity) {
		r.Next = &Next{Commit: 0x2400, CommitEnd: 0x2430}
		f.Server = 0x2100
	}},

	{what: "no record, a slot: adopted", none: true, start: 0x1F00},
	{what: "no record, a slot just made", none: true, start: 0x4000, change: func(_ *Record, f *cdc.Identity) {
		f.SlotFound.Created, f.SlotFound.Confirmed = true, 0x4000
	}},
	{what: "no record, a lost slot", none: true, reason: SlotLost, from: 0x1F00, slot: true, change: func(_ *Record, f *cdc.Identity) {
		f.SlotFound.Invalidation, f.SlotFound.WALStatus = "wal_removed", "lost"
	}, says: `slot "walpost" is lost (wal_removed), and no checkpoint belongs to it: events from 0/1F00 to the start of a new slot may be missing`},

	{
		what: "another system", reason: OtherSystem, from: 0x2000, change: func(_ *Record, f *cdc.Identity) { f.SystemID = "222" },
		says: `the server has the system identifier 222, but checkpoint shop.walpost/7 at 0/2000 was written for 111, another server: events from 0/2000 onwards may be missing, and the end of the gap is unknown`,
	},
	{what: "another system, and everything else too", reason: OtherSystem, from: 0x2000, slot: true, change: func(_ *Record, f *cdc.Identity) {
		*f = cdc.Identity{SystemID: "222", Timeline: 1, Database: "d", Slot: "s"}
	}},
	{what: "a server that does not say who it is", reason: OtherSystem, from: 0x2000, change: func(_ *Record, f *cdc.Identity) { f.SystemID = "" }},
	{
		what: "another database", reason: OtherDatabase, from: 0x2000, change: func(_ *Record, f *cdc.Identity) { f.Database = "shop2" },
		says: `the database is "shop2", but checkpoint shop.walpost/7 at 0/2000 was written for "shop": events from 0/2000 onwards may be missing, and the end of the gap is unknown`,
	},
	{what: "another slot, further on", reason: OtherSlot, from: 0x2000, to: 0x3000, change: func(_ *Record, f *cdc.Identity) {
		f.Slot, f.SlotFound.Confirmed = "walpost2", 0x3000
	}, says: `the slot is "walpost2", but checkpoint shop.walpost/7 at 0/2000 was written for "walpost": events from 0/2000 to 0/3000 may be missing`},
	{what: "another slot, behind", reason: OtherSlot, from: 0x2000, change: func(_ *Record, f *cdc.Identity) { f.Slot = "walpost2" }},
	{what: "another slot, on another timeline", reason: OtherSlot, from: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Slot, f.SlotFound.Confirmed = "walpost2", 0x3000
		descended(f, 0x1000)
	}},
	{what: "another slot, that is not there", reason: OtherSlot, from: 0x2000, slot: true, change: func(_ *Record, f *cdc.Identity) {
		f.Slot, f.SlotFound = "walpost2", cdc.SlotState{}
	}},
	{
		what: "a lower timeline", reason: TimelineBack, from: 0x2000, change: func(_ *Record, f *cdc.Identity) { f.Timeline, f.History = 2, f.History[:1] },
		says: `the server is on timeline 2, but checkpoint shop.walpost/7 at 0/2000 is on timeline 3: this is an old primary or an old copy: events from 0/2000 onwards may be missing, and the end of the gap is unknown`,
	},
	{what: "a higher timeline that left below the record", reason: TimelineForked, from: 0x1FFF, to: 0x3000, change: func(_ *Record, f *cdc.Identity) {
		descended(f, 0x1FFF)
		f.SlotFound.Confirmed = 0x3000
	}, says: `the server's history left timeline 3 at 0/1FFF, but checkpoint shop.walpost/7 at 0/2000 has delivered events of this timeline up to 0/2000: events from 0/1FFF to 0/3000 may be missing`},
	{what: "a higher timeline that left below the record, with a slot from before", reason: TimelineForked, from: 0x1FFF, change: func(_ *Record, f *cdc.Identity) {
		descended(f, 0x1FFF)
	}},
	{what: "a higher timeline that left below the record, without a slot", reason: TimelineForked, from: 0x1800, slot: true, change: func(_ *Record, f *cdc.Identity) {
		descended(f, 0x1800)
		f.SlotFound = cdc.SlotState{}
	}},
	{what: "a higher timeline that left below the record, with a slot that is lost further on", reason: TimelineForked, from: 0x1FFF, slot: true, change: func(_ *Record, f *cdc.Identity) {
		descended(f, 0x1FFF)
		f.SlotFound.Confirmed, f.SlotFound.WALStatus = 0x3000, "lost"
	}},
	{what: "a higher timeline whose history passed the record's by", reason: TimelineForked, from: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Timeline, f.History = 5, append(f.History, cdc.Fork{Timeline: 4, End: 0x3000})
	}},
	{
		what: "a higher timeline that never was on the record's", reason: TimelineForked, from: 0x2000, change: func(_ *Record, f *cdc.Identity) {
			f.Timeline, f.SlotFound.Confirmed = 5, 0x3000
		},
		says: `the server is on timeline 5, which does not continue timeline 3 of checkpoint shop.walpost/7 at 0/2000: events from 0/2000 onwards may be missing, and the end of the gap is unknown`,
	},
	{what: "a higher timeline that left within the transaction delivered in part", reason: TimelineForked, from: 0x2000, change: func(r *Record, f *cdc.Identity) {
		r.Next = &Next{Commit: 0x2400, CommitEnd: 0x2430, Rows: 2}
		descended(f, 0x2400)
	}, says: `the server's history left timeline 3 at 0/2400, but checkpoint shop.walpost/7 at 0/2000 has delivered events of this timeline up to 0/2430: no event of this server is missing, because the slot still has everything after 0/1F00, but consumers have events that this server lacks`},
	{what: "a higher timeline that left below the record, where nothing was delivered", start: 0x1F80, change: func(r *Record, f *cdc.Identity) {
		r.Delivered = 0x1F80
		descended(f, 0x1F80)
	}},
	{what: "the same, and the server has not reached the record", start: 0x1F80, change: func(r *Record, f *cdc.Identity) {
		r.Delivered = 0x1F00
		descended(f, 0x1F80)
		f.Server = 0x1F90
	}},
	{what: "the same, without the slot", reason: SlotMissing, from: 0x1F80, slot: true, change: func(r *Record, f *cdc.Identity) {
		r.Delivered = 0x1F00
		descended(f, 0x1F80)
		f.SlotFound = cdc.SlotState{}
	}, says: `slot "walpost" does not exist, but checkpoint shop.walpost/7 at 0/2000 was written for this slot: events from 0/1F80 to the start of a new slot may be missing`},
	{what: "the same, with a slot of the new timeline", reason: SlotAhead, from: 0x1F80, to: 0x1F90, change: func(r *Record, f *cdc.Identity) {
		r.Delivered = 0x1F00
		descended(f, 0x1F80)
		f.SlotFound.Confirmed = 0x1F90
	}},
	{what: "a higher timeline that left below an event that was delivered", reason: TimelineForked, from: 0x1F7F, change: func(r *Record, f *cdc.Identity) {
		r.Delivered = 0x1F80
		descended(f, 0x1F7F)
	}, says: `the server's history left timeline 3 at 0/1F7F, but checkpoint shop.walpost/7 at 0/2000 has delivered events of this timeline up to 0/1F80: no event of this server is missing, because the slot still has everything after 0/1F00, but consumers have events that this server lacks`},
	{what: "a higher timeline that left where nothing was delivered, but rows of the table were", reason: TimelineForked, from: 0x1F80, change: func(r *Record, f *cdc.Identity) {
		r.Delivered, r.Copy = 0x1F00, &Copy{Origin: OriginSnapshot, Slot: true}
		descended(f, 0x1F80)
	}},
	{what: "a higher timeline that left where nothing was delivered, and a part of the next transaction was", reason: TimelineForked, from: 0x1F80, change: func(r *Record, f *cdc.Identity) {
		r.Delivered, r.Next = 0x1F00, &Next{Commit: 0x2400, Rows: 1}
		descended(f, 0x1F80)
	}},
	{what: "the same, and its end was not read", reason: TimelineForked, from: 0x2000, change: func(r *Record, f *cdc.Identity) {
		r.Next = &Next{Commit: 0x2400, Rows: 2}
		descended(f, 0x2400)
	}},
	{
		what: "a restored copy", reason: ServerBehind, from: 0x1FFF, change: func(_ *Record, f *cdc.Identity) { f.Server = 0x1FFF },
		says: `the server's WAL ends at 0/1FFF, but checkpoint shop.walpost/7 at 0/2000 has delivered events up to 0/2000: the server was restored from an earlier copy: events from 0/1FFF onwards may be missing, and the end of the gap is unknown`,
	},
	{what: "a restored copy without the slot", reason: ServerBehind, from: 0x1800, slot: true, change: func(_ *Record, f *cdc.Identity) {
		f.Server, f.SlotFound = 0x1800, cdc.SlotState{}
	}},
	{what: "a restored copy without the transaction delivered in part", reason: ServerBehind, from: 0x2000, change: func(r *Record, f *cdc.Identity) {
		r.Next = &Next{Commit: 0x2400, Rows: 2}
		f.Server = 0x2400
	}},
	{what: "a promoted standby that has not replayed to the record", reason: ServerBehind, from: 0x1800, change: func(_ *Record, f *cdc.Identity) {
		descended(f, 0x3000)
		f.Server = 0x1800
	}},
	{
		what: "no slot", reason: SlotMissing, from: 0x2000, slot: true, change: func(_ *Record, f *cdc.Identity) { f.SlotFound = cdc.SlotState{} },
		says: `slot "walpost" does not exist, but checkpoint shop.walpost/7 at 0/2000 was written for this slot: events from 0/2000 to the start of a new slot may be missing`,
	},
	{what: "no slot after a promotion", reason: SlotMissing, from: 0x2000, slot: true, change: func(_ *Record, f *cdc.Identity) {
		descended(f, 0x2000)
		f.SlotFound = cdc.SlotState{}
	}},
	{what: "a lost slot, as 17 says it", reason: SlotLost, from: 0x2000, slot: true, change: func(_ *Record, f *cdc.Identity) {
		f.SlotFound.WALStatus, f.SlotFound.Invalidation, f.SlotFound.Restart = "lost", "idle_timeout", 0
	}, says: `slot "walpost" is lost (idle_timeout), and checkpoint shop.walpost/7 at 0/2000 was written for this slot: events from 0/2000 to the start of a new slot may be missing`},
	{
		what: "a lost slot, by its WAL alone", reason: SlotLost, from: 0x2000, slot: true, change: func(_ *Record, f *cdc.Identity) { f.SlotFound.WALStatus = "lost" },
		says: `slot "walpost" is lost (lost), and checkpoint shop.walpost/7 at 0/2000 was written for this slot: events from 0/2000 to the start of a new slot may be missing`,
	},
	{what: "an invalidated slot whose WAL is there", reason: SlotLost, from: 0x2000, slot: true, change: func(_ *Record, f *cdc.Identity) { f.SlotFound.Invalidation = "wal_level_insufficient" }},
	{what: "a lost slot that was advanced before", reason: SlotLost, from: 0x2000, slot: true, change: func(_ *Record, f *cdc.Identity) {
		f.SlotFound.Invalidation, f.SlotFound.Confirmed = "lost", 0x3000
	}},
	{
		what: "a slot that was advanced by one byte", reason: SlotAhead, from: 0x2000, to: 0x2001, change: func(_ *Record, f *cdc.Identity) { f.SlotFound.Confirmed = 0x2001 },
		says: `slot "walpost" stands at 0/2001, beyond checkpoint shop.walpost/7 at 0/2000: it was advanced, created again or used by another reader: events from 0/2000 to 0/2001 may be missing`,
	},
	{what: "a slot created again by somebody", reason: SlotAhead, from: 0x2000, to: 0x4000, change: func(_ *Record, f *cdc.Identity) { f.SlotFound.Confirmed = 0x4000 }},
	{what: "a slot created again by this very session", reason: SlotAhead, from: 0x2000, to: 0x4100, change: func(_ *Record, f *cdc.Identity) {
		f.SlotFound.Created, f.SlotFound.Confirmed = true, 0x4100
	}},
	{what: "a slot on the promoted server beyond the record", reason: SlotAhead, from: 0x2000, to: 0x3000, change: func(_ *Record, f *cdc.Identity) {
		descended(f, 0x2000)
		f.SlotFound.Confirmed = 0x3000
	}},
	{what: "a slot beyond the record, though not beyond the transaction delivered in part", reason: SlotAhead, from: 0x2000, to: 0x2400, change: func(r *Record, f *cdc.Identity) {
		r.Next = &Next{Commit: 0x2400, CommitEnd: 0x2430, Rows: 2}
		f.SlotFound.Confirmed = 0x2400
	}},

	{what: "a record that does not know what was published", start: 0x2000, change: func(r *Record, f *cdc.Identity) {
		r.Published = nil
		altered(f)
	}},
	{what: "a table that is newly configured", start: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables = append(f.Published.Tables, cdc.PublishedTable{Name: "z.outbox", OID: 9})
	}},
	{what: "a table that is no longer configured", start: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables = f.Published.Tables[1:]
	}},
	{what: "one entry of two was dropped", start: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables[1].Entries = f.Published.Tables[1].Entries[1:]
	}},
	{what: "a further entry", start: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables[0].Entries = append([]cdc.PublishedEntry{{By: cdc.PublishedBySchema, OID: 5, XMin: 900}}, f.Published.Tables[0].Entries...)
	}},
	{what: "the schema's entry was dropped, and the table's has no filter", start: 0x2000, change: func(r *Record, _ *cdc.Identity) {
		bySchema(r)
	}},
	{what: "the schema's entry was dropped, and the table's filter acts", reason: PublicationChanged, from: 0x1E00, change: func(r *Record, f *cdc.Identity) {
		bySchema(r)
		f.Published.Tables[0].Entries[0].Filtered = true
	}, says: `the entry of table public.outbox in publication "walpost" was altered (after checkpoint shop.walpost/7): rows that were committed after 0/1E00 may be missing`},
	{what: "the schema's entry still keeps the table's filter from acting", start: 0x2000, change: func(r *Record, f *cdc.Identity) {
		bySchema(r)
		f.Published.Tables[0].Entries = slices.Clone(r.Published.Tables[0].Entries)
		f.Published.Tables[0].Entries[1].Filtered = true
	}},
	{what: "a table with another name", start: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables = []cdc.PublishedTable{f.Published.Tables[0]}
		f.Published.Tables[0].Name = "public.events"
	}},
	{what: "a table with another name, taken out and put in", reason: PublicationChanged, from: 0x1E00, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables[0].Name = "public.events"
		f.Published.Tables[0].Entries[0].OID = 5
	}, says: `table public.events was removed from publication "walpost" and added again (after checkpoint shop.walpost/7): rows that were committed after 0/1E00 may be missing`},
	{what: "other tables", reason: OtherTables, from: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables = []cdc.PublishedTable{{Name: "z.outbox", OID: 9}}
	}, says: `source.table is z.outbox, but checkpoint shop.walpost/7 at 0/2000 was written for public.outbox, sales.outbox, so the slot may still hold rows of public.outbox, sales.outbox: walpost would skip those that were committed after 0/2000`},
	{what: "another table than those", reason: OtherTables, from: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables = []cdc.PublishedTable{{Name: "y.outbox", OID: 9}}
	}},
	{what: "other tables of another publication, older than the slot's WAL", reason: OtherTables, from: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Published = cdc.Published{Publication: "mine", OID: 5, Tables: []cdc.PublishedTable{{Name: "z.outbox", OID: 9}}}
		f.Settled = true
	}},
	{what: "other tables, and the publication altered", reason: OtherTables, from: 0x1E00, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables = []cdc.PublishedTable{{Name: "z.outbox", OID: 9}}
		altered(f)
	}},
	{what: "messages alone from now on", start: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables = nil
	}},
	{what: "messages alone before", start: 0x2000, change: func(r *Record, _ *cdc.Identity) {
		r.Published.Tables = nil
	}},
	{what: "other tables than those of a record that does not know them", start: 0x2000, change: func(r *Record, f *cdc.Identity) {
		r.Published = nil
		f.Published.Tables = []cdc.PublishedTable{{Name: "z.outbox", OID: 9}}
	}},
	{what: "another publication, older than the slot's WAL", start: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Publication, f.Published.OID, f.Settled = "mine", 5, true
	}},
	{what: "another publication", reason: OtherPublication, from: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Publication, f.Published.OID = "mine", 5
	}, says: `source.publication is "mine", but checkpoint shop.walpost/7 at 0/2000 was written with publication "walpost": the slot may still hold rows that were written before publication "mine" had its current form: rows that were committed after 0/2000 may be missing`},
	{
		what: "the publication was altered", reason: PublicationChanged, from: 0x1E00, change: func(_ *Record, f *cdc.Identity) { altered(f) },
		says: `publication "walpost" was altered (after checkpoint shop.walpost/7): rows that were committed after 0/1E00 may be missing`,
	},
	{what: "the publication was altered, and the look was beyond the record", reason: PublicationChanged, from: 0x2100, change: func(r *Record, f *cdc.Identity) {
		r.Published.LSN = 0x2100
		f.Published.XMin += 2
	}},
	{what: "the publication was altered, and the look was on the old timeline beyond its end", reason: PublicationChanged, from: 0x2000, change: func(r *Record, f *cdc.Identity) {
		r.Published.LSN = 0x2100
		descended(f, 0x2000)
		f.Published.XMin += 3
	}},
	{what: "the publication was made again", reason: PublicationChanged, from: 0x1E00, change: func(_ *Record, f *cdc.Identity) {
		f.Published.OID, f.Published.Tables[0].Entries[0].OID = 5, 6
	}, says: `publication "walpost" was dropped and created again (after checkpoint shop.walpost/7): rows that were committed after 0/1E00 may be missing`},
	{what: "a table was made again", reason: PublicationChanged, from: 0x1E00, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables[0].OID = 5
	}, says: `table public.outbox in publication "walpost" was dropped and created again (after checkpoint shop.walpost/7): rows that were committed after 0/1E00 may be missing`},
	{what: "a table was taken out and put in", reason: PublicationChanged, from: 0x1E00, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables[0].Entries[0].OID = 5
	}, says: `table public.outbox was removed from publication "walpost" and added again (after checkpoint shop.walpost/7): rows that were committed after 0/1E00 may be missing`},
	{what: "a table is published by its schema now", reason: PublicationChanged, from: 0x1E00, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables[0].Entries[0].By = cdc.PublishedBySchema
	}},
	{what: "a table's entry was altered, and the publication", reason: PublicationChanged, from: 0x1E00, change: func(_ *Record, f *cdc.Identity) {
		f.Published.Tables[0].Entries[0].XMin++
		altered(f)
	}, says: `publication "walpost" was altered, the entry of table public.outbox in publication "walpost" was altered (after checkpoint shop.walpost/7): rows that were committed after 0/1E00 may be missing`},
	{what: "a look found the table gone, and it is back", reason: PublicationChanged, from: 0x1E00, change: func(r *Record, _ *cdc.Identity) {
		r.Published = r.Published.Broken("table public.outbox does not exist in database shop")
	}, says: `a check found that table public.outbox does not exist in database shop (after checkpoint shop.walpost/7): rows that were committed after 0/1E00 may be missing`},
	{what: "a slot that was advanced, and the publication altered", reason: SlotAhead, from: 0x1E00, to: 0x2001, change: func(_ *Record, f *cdc.Identity) {
		f.SlotFound.Confirmed = 0x2001
		altered(f)
	}},
	{what: "no slot, and no publication", reason: SlotMissing, from: 0x1E00, slot: true, change: func(_ *Record, f *cdc.Identity) {
		f.SlotFound, f.Published = cdc.SlotState{}, cdc.Published{Publication: "walpost"}
	}},
	{what: "another system, with a publication of the same name", reason: OtherSystem, from: 0x2000, change: func(_ *Record, f *cdc.Identity) {
		f.SystemID = "333"
		altered(f)
	}},
}

func TestJudgements(t *testing.T) {
	token := regexp.MustCompile(`^[0-9a-f]{12}$`)
	tokens := map[string]string{}
	for _, c := range judgements {
		t.Run(c.what, func(t *testing.T) {
			rec, found := judged()
			if c.change != nil {
				c.change(rec, found)
			}
			if c.none {
				rec = nil
			}
			start, err := Judge(rec, *found)
			if c.reason == "" {
				if err != nil || start != c.start {
					t.Fatalf("start %s, %v; must be %s", start, err, c.start)
				}
				return
			}
			var ref *Refusal
			if start != 0 || !errors.As(err, &ref) {
				t.Fatalf("start %s, %v; must be refused: %s", start, err, c.reason)
			}
			if ref.Reason != c.reason || ref.From != c.from || ref.To != c.to || ref.NeedsSlot() != c.slot {
				t.Errorf("refused: %s from %s to %s, new slot %t; must be %s from %s to %s, %t",
					ref.Reason, ref.From, ref.To, ref.NeedsSlot(), c.reason, c.from, c.to, c.slot)
			}
			if c.says != "" && ref.Error() != c.says {
				t.Errorf("says\n%s\nmust be\n%s", ref.Error(), c.says)
			}
			if !reflect.DeepEqual(ref.Record, rec) || rec != nil && ref.Record == rec || !reflect.DeepEqual(ref.Found, *found) {
				t.Errorf("of %+v, %+v; must be a copy of %+v, %+v", ref.Record, ref.Found, rec, *found)
			}
			if wrapped := fmt.Errorf("session: %w", err); !fault.NeedsPerson(wrapped) || fault.Retryable(wrapped) || fault.Misconfigured(wrapped) {
				t.Error("only a person can help, and it must say so")
			}
			if !token.MatchString(ref.Token) {
				t.Errorf("token %q", ref.Token)
			}
			if other, ok := tokens[ref.Token]; ok {
				t.Errorf("its token is also the one of %q", other)
			}
			tokens[ref.Token] = c.what
		})
	}
}

func TestWithoutRecordAndSlotThereIsNoGap(t *testing.T) {
	_, found := judged()
	found.SlotFound = cdc.SlotState{}
	start, err := Judge(nil, *found)
	if !errors.Is(err, ErrNoSlot) || start != 0 {
		t.Errorf("start %s, %v", start, err)
	}
	var ref *Refusal
	if errors.As(err, &ref) || fault.NeedsPerson(err) {
		t.Errorf("it is refused: %v", err)
	}
}

// The event before which nothing is missing is not the newest that was delivered: that may be behind the change.
func TestALostSlotsGapBeginsBeforeTheChangeOfThePublication(t *testing.T) {
	rec, found := judged()
	found.SlotFound = cdc.SlotState{}
	_, err := Judge(rec, *found)
	var ref *Refusal
	if !errors.As(err, &ref) || !ref.Since.Equal(rec.CommitTime) {
		t.Fatalf("unchanged: %+v", ref)
	}
	altered(found)
	if _, err = Judge(rec, *found); !errors.As(err, &ref) || ref.From.LSN() != rec.Published.LSN || !ref.Since.Equal(looked) {
		t.Errorf("changed: from %s since %s", ref.From, ref.Since)
	}
}

func made(f *cdc.Identity) {
	f.SlotFound = cdc.SlotState{Exists: true, Created: true, Confirmed: 0x5000, Restart: 0x4F00, WALStatus: "reserved"}
}

func TestAServerInRecoveryIsWaitedFor(t *testing.T) {
	rec, found := judged()
	found.Server, found.Recovering = 0x1FFF, true
	var refusal *Refusal
	_, err := Judge(rec, *found)
	if !fault.Retryable(err) || fault.NeedsPerson(err) || !errors.As(err, &refusal) {
		t.Errorf("behind, in recovery: %v, want an error that passes", err)
	}
	found.Recovering = false
	if _, err = Judge(rec, *found); fault.Retryable(err) || !fault.NeedsPerson(err) {
		t.Errorf("behind, recovered: %v, want a refusal", err)
	}
	found.Recovering, found.SystemID = true, "222"
	if _, err = Judge(rec, *found); fault.Retryable(err) || !fault.NeedsPerson(err) {
		t.Errorf("another server in recovery: %v, want a refusal", err)
	}
}
