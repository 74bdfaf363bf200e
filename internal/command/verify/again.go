package verify

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
)

// A stretch is a series of duplicates in one partition with no other event between them. If the relay polls, it is one of the records of
// one key.
type stretch struct {
	topic     uint64
	partition int32
	begin     int64 // the offset of the newest event before the stretch
	oldest    int64 // the smallest offset that is repeated
	at        int64 // the offset that the newest of them repeats
	end       int64 // the offset of the newest of them
	start     int64 // the offset of the newest record so far that repeats the first record of the log
	count     int64
	broken    string
	examples  [][]byte
}

// judgeAgain looks at the records that repeat an earlier one of their partition, in the order of the
// log.
func (v *verifier) judgeAgain(ctx context.Context) error {
	var s stretch
	var group []byte
	err := v.again.each(ctx, func(b []byte) error {
		var e entry
		e.parse(b[againPrefix:])
		if !bytes.Equal(b[:againGroup], group) {
			v.conclude(&s)
			s = stretch{start: -1, examples: s.examples[:0]}
			group = append(group[:0], b[:againGroup]...)
			v.ofKey.reset()
		}
		firsts := v.firsts(e.topic, e.partition)
		if e.other == noDuplicate {
			firsts.add(e.offset)
			return nil
		}
		next := firsts.after(s.end)
		if s.count == 0 || next >= 0 && next < e.offset {
			v.conclude(&s)
			s = stretch{topic: e.topic, partition: e.partition, begin: firsts.before(e.offset), oldest: e.other, start: s.start, examples: s.examples[:0]}
			v.repeats.reset()
		} else if e.other > s.at && firsts.after(s.at) != e.other {
			s.broken = fmt.Sprintf("the repeated records before this record end at offset %d", s.at)
		}
		s.at, s.end, s.oldest = e.other, e.offset, min(s.oldest, e.other)
		if v.Polled != nil {
			v.repeats.add(e.other)
		}
		if e.other == firsts.after(-1) {
			s.start = e.offset
		}
		if s.count++; len(s.examples) < v.Limit {
			s.examples = append(s.examples, append([]byte(nil), b[againPrefix:]...))
		}
		return nil
	})
	v.again.close()
	v.conclude(&s)
	return err
}

// firsts are the offsets of the records that are not duplicates: of the partition, or of the key that is judged if the relay polls.
func (v *verifier) firsts(topic uint64, partition int32) *offsets {
	if v.Polled != nil {
		return &v.ofKey
	}
	return &v.topics[topic].parts[partition].firsts
}

// conclude judges a whole stretch.
func (v *verifier) conclude(s *stretch) {
	if s.count == 0 {
		return
	}
	t := v.topics[s.topic]
	firsts := v.firsts(s.topic, s.partition)
	last := firsts.after(s.end) < 0
	// A stretch that repeats the first record of the log may have begun with records that retention has
	// removed before it. They look new then, and the order of the log up to there is not that of the stream.
	unsure := t.parts[s.partition].cut && s.oldest <= s.start
	kind := Duplicate
	switch {
	case s.broken == "" && (s.at == s.begin || unsure):
		v.report.Repeated += s.count
		return
	case t.compacted || unsure:
		kind = RepeatUnknown
		s.broken = cmp.Or(s.broken, "the series of repeated records is incomplete")
	case v.Polled != nil && v.repeats.has(firsts, s.oldest, s.begin):
		kind, s.broken = RepeatUnknown, "the records of this key are repeated in another order, which is normal if several transactions write the key at the same time"
	case s.broken == "" && last:
		kind, s.broken = RepeatUnknown, "the log ends before the repeated records have reached the newest one"
	case s.broken == "":
		s.broken = fmt.Sprintf("newer events follow, although the repeated records had not reached offset %d", s.begin)
	}
	for _, b := range s.examples {
		var e entry
		e.parse(b)
		v.finding(kind, &e, fmt.Sprintf("repeats offset %d; %s", e.other, s.broken), &e)
	}
	v.report.Counts[kind] += s.count - int64(len(s.examples))
}
