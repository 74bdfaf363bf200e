//go:build linux

package main

import (
	"context"
	"crypto/md5" //nolint:gosec // as the rows' ids are made
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// check compares the topic with the backlog: each row has exactly one record with its id and key, there are no other records, and
// each key is in the order of writing on one partition.
func check(ctx context.Context, brokers []string, topic string, b *backlog) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	var total int64
	ends.Each(func(o kadm.ListedOffset) { total += o.Offset })

	var wrong []string
	count := map[string]int{}
	note := func(what string, r *kgo.Record) {
		if count[what]++; len(wrong) < 5 {
			wrong = append(wrong, fmt.Sprintf("%s: partition %d offset %d key %s value %.80s", what, r.Partition, r.Offset, r.Key, r.Value))
		}
	}
	type place struct {
		partition int32
		seq       int64
	}
	seen := make([]bool, b.rows)
	keys := map[string]place{}
	for read := int64(0); read < total; {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		if errs := fetches.Errors(); len(errs) > 0 {
			return fmt.Errorf("consume %s: %w", topic, errs[0].Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			read++
			var row struct{ Seq int64 }
			if err := json.Unmarshal(r.Value, &row); err != nil || row.Seq < b.first || row.Seq > b.last {
				note("not of the backlog", r)
				return
			}
			if seen[row.Seq-b.first] {
				note("duplicate", r)
				return
			}
			seen[row.Seq-b.first] = true
			if key := fmt.Sprintf("key-%d", row.Seq%1000); string(r.Key) != key || eventID(r) != id(row.Seq) {
				note("the key or id differs from the row's", r)
			}
			last, again := keys[string(r.Key)]
			if again && last.partition != r.Partition {
				note("key on two partitions", r)
			}
			if last.seq > row.Seq {
				note("out of order", r)
			}
			keys[string(r.Key)] = place{r.Partition, row.Seq}
		})
	}
	missing := 0
	for _, ok := range seen {
		if !ok {
			missing++
		}
	}
	if missing > 0 || len(wrong) > 0 {
		return fmt.Errorf("%d rows are missing in %s; wrong records: %v\n  %s", missing, topic, count, strings.Join(wrong, "\n  "))
	}
	return nil
}

func eventID(r *kgo.Record) string {
	for _, h := range r.Headers {
		if h.Key == "id" {
			return strings.ReplaceAll(string(h.Value), "-", "")
		}
	}
	return ""
}

// id is the id that the procedure put gives to a row.
func id(seq int64) string {
	sum := md5.Sum([]byte(fmt.Sprint(seq))) //nolint:gosec // no secret
	return hex.EncodeToString(sum[:])
}
