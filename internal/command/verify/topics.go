package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/size"
)

// A topic is one that rows go to.
type topic struct {
	id        uint64
	name      string
	n         int32 // partitions; 0 if it does not exist
	asked     bool  // for the above, since the last look at all topics
	compacted bool  // or nothing tells whether it is
	grown     bool  // a record is not in the partition where a record with its key goes now
	parts     []part
}

// A part is one partition of a topic.
type part struct {
	open   bool    // a transaction that stays open hides records
	cut    bool    // retention has removed records of the time that is compared
	oldest int64   // timestamp of the first record that was read and is not marked, in microseconds
	firsts offsets // of the records that are not duplicates
}

func (v *verifier) topic(name string) *topic {
	t := v.byName[name]
	if t == nil {
		t = &topic{id: uint64(len(v.topics)), name: strings.Clone(name)}
		v.topics, v.byName[t.name] = append(v.topics, t), t
	}
	return t
}

// describe asks the brokers about a topic, once.
func (v *verifier) describe(ctx context.Context, t *topic) error {
	if t.asked {
		return nil
	}
	t.asked = true
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	info, err := kafka.DescribeTopic(ctx, v.client, t.name, "cleanup.policy")
	switch {
	case err != nil:
		return fmt.Errorf("describe topic %s: %w", t.name, err)
	case errors.Is(info.Err, kerr.UnknownTopicOrPartition):
		return nil
	case info.Err != nil:
		return kafka.Unreadable(t.name, info.Err)
	}
	policy, known := info.Settings["cleanup.policy"]
	if !known {
		v.Say(fmt.Sprintf("the cleanup.policy of topic %s is unknown (%v): verify treats the topic as compacted", t.name, info.Refused))
	}
	t.n, t.parts, t.compacted = int32(len(info.Partitions)), make([]part, len(info.Partitions)), !known || strings.Contains(policy, "compact")
	return nil
}

// readTopics sorts the records of all topics that rows go to.
func (v *verifier) readTopics(ctx context.Context) error {
	var names []string
	for _, t := range v.topics {
		t.asked = false // a topic may have been made, or have got partitions, since its first row was read
		if err := v.describe(ctx, t); err != nil {
			return err
		}
		if t.n > 0 {
			names = append(names, t.name)
		}
	}
	total, err := v.countRecords(ctx, names)
	if err != nil {
		return err
	}
	v.Say(fmt.Sprintf("topics: %d, with up to %d records; temporary files: about %s in all", len(names), total,
		roughly((v.report.Rows+total)*entryBytes)))
	for _, t := range v.topics {
		for p := range t.parts {
			if err := v.readPartition(ctx, t, int32(p), total); err != nil {
				return kafka.Unreadable(t.name, err)
			}
		}
	}
	return nil
}

// countRecords counts the offsets that will be read.
func (v *verifier) countRecords(ctx context.Context, topics []string) (n int64, err error) {
	if len(topics) == 0 {
		return 0, nil // no topic would be all topics
	}
	adm := kadm.NewClient(v.client)
	var starts kadm.ListedOffsets
	if v.from.IsZero() {
		starts, err = adm.ListStartOffsets(ctx, topics...)
	} else {
		starts, err = adm.ListOffsetsAfterMilli(ctx, v.from.UnixMilli(), topics...)
	}
	if err != nil {
		return 0, err
	}
	ends, err := adm.ListEndOffsets(ctx, topics...)
	if err != nil {
		return 0, err
	}
	ends.Each(func(end kadm.ListedOffset) {
		if start, ok := starts.Lookup(end.Topic, end.Partition); ok && start.Err == nil && end.Err == nil {
			n += max(0, end.Offset-start.Offset)
		}
	})
	return n, nil
}

func (v *verifier) readPartition(ctx context.Context, t *topic, number int32, total int64) error {
	p := &t.parts[number]
	p.oldest = unknown
	next := int64(0) // the first offset that was not taken: after some errors a Reader starts over
	r := kafka.Reader{Client: v.client, Topic: t.name, Partition: number, Since: v.from, Patience: patience}
	var headers []cdc.Header
	r.Each = func(rec *kgo.Record) error {
		if rec.Offset < next || rec.Offset >= r.End { // the last fetch can have records that are younger than the end
			return nil
		}
		next = rec.Offset + 1
		v.report.Records++
		v.Progress("reading records", v.report.Records, total)
		e := entry{kind: ofRecord, topic: t.id, partition: number, offset: rec.Offset, time: unknown, stamp: unknown, age: unknown}
		if rec.Attrs.TimestampType() == 0 { // the producer's
			e.time = rec.Timestamp.UnixMicro()
		}
		headers = headers[:0]
		for _, h := range rec.Headers {
			headers = append(headers, cdc.Header{Key: h.Key, Value: h.Value})
		}
		id, found := v.hash.content(&e, rec.Key, rec.Value, headers)
		if p.oldest == unknown && !e.has(marked) { // what a command sends has an old timestamp
			p.oldest = rec.Timestamp.UnixMicro()
		}
		if !found || id == nil {
			v.report.NoEventID++
			return nil
		}
		e.id = cut(id)
		v.hash.record(&e, headers)
		return v.add(id, &e)
	}
	err := r.ToEnd(ctx)
	if p.open = errors.Is(err, kafka.ErrOpen); p.open {
		v.open = fmt.Sprintf("topic %s: %v", t.name, err)
	} else if err != nil {
		return err
	}
	if r.End < next {
		return fmt.Errorf("partition %d was recreated while verify read it: run verify again", number)
	}
	p.cut = r.Start > 0 && !r.Older // if the log has an older record, nothing younger was removed
	return nil
}

// hides reports whether a transaction that stays open may hide the record of a row.
func (t *topic) hides(partition int32) bool {
	for i := range t.parts {
		if t.parts[i].open && (partition < 0 || t.grown || int32(i) == partition) {
			return true
		}
	}
	return false
}

// removed reports whether retention may have removed the record of a row that was written at age.
func (t *topic) removed(partition int32, age int64) bool {
	for i := range t.parts {
		p := &t.parts[i]
		if partition >= 0 && !t.grown && int32(i) != partition || !p.cut {
			continue
		}
		if age == unknown || p.oldest == unknown || age <= p.oldest+margin.Microseconds() {
			return true
		}
	}
	return false
}

func roughly(bytes int64) string { return size.Bytes(bytes).Roughly() }
