package backfill

import (
	"context"
	"hash/maphash"
	"math"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
)

// A comparison tells which rows of the table are in Kafka already. The event id alone does not tell that: two tables, or two
// databases that share a topic, can have the same ids, and an id can be NULL. So rows and records are compared by topic, id, key,
// value and time. Equal ones are counted, because each is an event. In doubt a row counts as missing, because a duplicate is
// better than a loss.
type comparison struct {
	// unique says that no two events have one id. Then value and time are not compared, because both may have changed.
	unique bool
	// timed says that the time of each row's record is known: the row's commit time, or the time in a column.
	timed bool

	topics map[string]*comparedTopic
	hashes [2]maphash.Hash // two, because two events may have one hash in common
	events map[[2]uint64]tally
	// seen holds hashes of two kinds: of topic, id and key, and of everything in a record, its time included.
	seen map[uint64]struct{}

	// again holds hashes of topic and key. Of such a key in a compacted topic, take has found a row that is missing.
	again   map[uint64]struct{}
	resumed bool // an earlier call has published rows, so the key of any row may be in again

	left    int // rows that are not published by an earlier call
	inDoubt int // of left: missing rows that an event in Kafka resembles
}

// A comparedTopic is what was read of a topic.
type comparedTopic struct {
	events    int  // -1: it could not be read
	timed     bool // times are compared, because the records have the times that a relay gave them
	compacted bool // the newest event of a key replaces the older ones
}

// A tally counts rows and records that are equal in everything that is compared.
type tally struct {
	records count // in Kafka; a record that comes again with the same id and time is not counted
	times   count // the number of different times of these records; 0 if times are compared
	rows    count // in the table
	left    count // of rows: those that are not published by an earlier call
}

// A count has 16 bits, because there are millions of counts. It stops at many.
type count uint16

const many = math.MaxUint16

func (n *count) add() {
	if *n < many {
		*n++
	}
}

// maxEvents bounds the memory to about 1.2 GB. Half as many events fit if their times are unknown.
const maxEvents = 20_000_000

func newComparison(unique, timed bool) *comparison {
	c := &comparison{
		unique: unique, timed: timed, topics: map[string]*comparedTopic{}, events: map[[2]uint64]tally{}, seen: map[uint64]struct{}{},
		again: map[uint64]struct{}{},
	}
	for i := range c.hashes {
		c.hashes[i].SetSeed(maphash.MakeSeed())
	}
	return c
}

// how says what is compared, for people.
func (c *comparison) how() string {
	switch {
	case c.unique:
		return "topic, id and key"
	case c.timed:
		return "topic, id, key, value and time"
	}
	return "topic, id, key and value"
}

// prints are the hashes of an event.
type prints struct {
	event [2]uint64 // of all that is compared
	named uint64    // of topic, id and key
	sent  uint64    // of event with its time
}

func (c *comparison) prints(t *comparedTopic, topic string, id, key, value []byte, at time.Time) (p prints) {
	for i := range c.hashes {
		h := &c.hashes[i]
		h.Reset()
		maphash.WriteComparable(h, len(topic))
		_, _ = h.WriteString(topic) // it never fails
		hashText(h, id)
		hashText(h, key)
		p.named = h.Sum64()
		if !c.unique {
			hashText(h, value)
		}
		if t.timed {
			maphash.WriteComparable(h, at.UnixMilli())
		}
		p.event[i] = h.Sum64()
		maphash.WriteComparable(h, at.UnixMilli())
		p.sent = h.Sum64()
	}
	return p
}

// hashText writes a text such that two different sequences of texts give different bytes. NULL differs from the empty text.
func hashText(h *maphash.Hash, text []byte) {
	if text == nil {
		maphash.WriteComparable(h, -1)
		return
	}
	maphash.WriteComparable(h, len(text))
	_, _ = h.Write(text) // it never fails
}

// record counts a record of a topic. It reports whether memory is left for more.
func (c *comparison) record(topic string, t *comparedTopic, r *kafka.TailRecord) bool {
	if t.events == 0 {
		t.timed = c.timed && !c.unique && !r.Time.IsZero()
	}
	t.events++
	p := c.prints(t, topic, r.ID, r.Key, r.Value, r.Time)
	n := c.events[p.event]
	again := false
	if !c.unique && !t.timed {
		if _, again = c.seen[p.sent]; !again {
			c.seen[p.sent] = struct{}{}
			n.times.add()
		}
	}
	if !again || len(r.ID) == 0 { // nothing tells that two records without an id are one event
		n.records.add()
	}
	c.events[p.event] = n
	if !c.unique {
		c.seen[p.named] = struct{}{}
	}
	return len(c.events)+len(c.seen)/2 <= maxEvents
}

// row counts a row. The caller has read the row's topic.
func (c *comparison) row(rec *cdc.Record) {
	p := c.ofRow(rec)
	if n, there := c.events[p.event]; there {
		n.rows.add()
		c.events[p.event] = n
	}
}

// rowLeft counts a row that no earlier call has published. row has counted it before.
func (c *comparison) rowLeft(rec *cdc.Record) {
	c.left++
	p := c.ofRow(rec)
	if n, there := c.events[p.event]; there {
		n.left.add()
		c.events[p.event] = n
		return
	}
	if _, named := c.seen[p.named]; named && rec.EventID != "" {
		c.inDoubt++
	}
}

func (c *comparison) ofRow(rec *cdc.Record) prints {
	return c.prints(c.topics[rec.Topic], rec.Topic, idOf(rec), rec.Key, rec.Value, rec.Time)
}

// conclude returns how many of the rows that are left are in Kafka. It is called once all rows are counted.
func (c *comparison) conclude() (there int) {
	for p, n := range c.events {
		if n.left == 0 {
			continue
		}
		switch {
		case n.rows == many || n.records == many || n.times > 0 && n.records > n.rows:
			// There are too many to count, or some records belong to other rows, which are gone or were never in these tables.
			n.records = 0
			c.inDoubt += int(n.left)
		case n.times > 0:
			n.records = n.times
		}
		done := n.rows - n.left
		n.records = min(n.records-min(done, n.records), n.left)
		there += int(n.records)
		c.events[p] = n
	}
	return there
}

// take reports whether a row that is left is in Kafka. It is called once for each of them, in their order, after conclude. In a
// compacted topic, a missing row must not replace a newer event of its key. So the rows behind it are published again, although
// they are in Kafka.
func (c *comparison) take(rec *cdc.Record) bool {
	p := c.ofRow(rec)
	n := c.events[p.event]
	there := n.records > 0 && n.left > 0
	if there {
		n.records--
		c.events[p.event] = n
	}
	if !c.topics[rec.Topic].compacted {
		return there
	}
	h := &c.hashes[0]
	h.Reset()
	hashText(h, []byte(rec.Topic))
	hashText(h, rec.Key)
	key := h.Sum64()
	if !there {
		c.again[key] = struct{}{}
	}
	_, again := c.again[key]
	return there && !again && !c.resumed
}

// compare decides which parts of a row and of a record in Kafka are compared.
func (rc *recovery) compare(ctx context.Context, r *reading) (*comparison, error) {
	all := r.reader.Tables()
	key, uuid := idIsKey(all[0].Relation, r.Columns(all[0].Relation).ID)
	unique := len(all) == 1 && key && uuid // no two rows of any databases have one event id
	timed := r.Columns(all[0].Relation).Timestamp != ""
	if !timed && !unique {
		timed = true
		for _, t := range all {
			known, err := t.Timed(ctx, r.asked())
			if err != nil {
				return nil, err
			}
			timed = timed && known
		}
	}
	return newComparison(unique, timed), nil
}
