package shop

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/ledger"
)

// Follow reads topics from their start and calls observe for each record, in the order of its
// partition. It returns nil when ctx ends.
func Follow(ctx context.Context, brokers, topics []string, observe func(*kgo.Record), opts ...kgo.Opt) error {
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(brokers...),
		kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	}, opts...)...)
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		fs := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		// The client continues by itself when brokers are down for a while, which is part of the
		// tests.
		for _, e := range fs.Errors() {
			if errors.Is(e.Err, kgo.ErrClientClosed) {
				return e.Err
			}
		}
		fs.EachRecord(observe)
	}
}

// Entry is a record for the ledger: the event id from the header "id", and all bytes that a
// duplicate must repeat.
func Entry(r *kgo.Record) ledger.Record {
	out := ledger.Record{Topic: r.Topic, Partition: r.Partition, Key: string(r.Key)}
	out.Bytes = append(out.Bytes, r.Key, r.Value, strconv.AppendInt(nil, r.Timestamp.UnixMilli(), 10))
	for _, h := range r.Headers {
		if h.Key == "id" {
			out.ID = string(h.Value)
		}
		out.Bytes = append(out.Bytes, []byte(h.Key), h.Value)
	}
	return out
}
