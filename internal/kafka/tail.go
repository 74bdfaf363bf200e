package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// tailPatience is how long a partition may give nothing before its reading fails.
const tailPatience = 30 * time.Second

// A TailRecord is a record with an event id. Its bytes are valid during the call that hands it over.
type TailRecord struct {
	ID, Key, Value []byte
	Time           time.Time // zero where it is the broker's (message.timestamp.type LogAppendTime), which says nothing of the event
}

// TailRecords calls each with every committed record of topic that has the header id, from the first one on whose timestamp is not before
// since; the zero time is from the beginning. A topic that does not exist has none. A transaction that stays open hides the records behind
// it: open says where, and is "" if there's none.
func TailRecords(ctx context.Context, cl *kgo.Client, topic string, since time.Time, each func(r *TailRecord) error) (open string, err error) {
	asked, cancel := context.WithTimeout(ctx, tailPatience)
	defer cancel()
	info, err := DescribeTopic(asked, cl, topic)
	switch {
	case err != nil:
		return "", fmt.Errorf("read topic %s: %w", topic, err)
	case errors.Is(info.Err, kerr.UnknownTopicOrPartition):
		return "", nil
	case info.Err != nil:
		return "", fmt.Errorf("read topic %s: %w", topic, info.Err)
	}
	for p := range info.Partitions {
		given := int64(0) // the offset behind the newest record that each was called with: none comes twice
		r := Reader{Client: cl, Topic: topic, Partition: int32(p), Since: since, Patience: tailPatience}
		r.Each = func(rec *kgo.Record) error {
			for _, h := range rec.Headers {
				if h.Key != "id" || rec.Offset < given {
					continue
				}
				given = rec.Offset + 1
				out := TailRecord{ID: h.Value, Key: rec.Key, Value: rec.Value}
				if rec.Attrs.TimestampType() == 0 {
					out.Time = rec.Timestamp
				}
				return each(&out)
			}
			return nil
		}
		switch err := r.ToEnd(ctx); {
		case errors.Is(err, ErrOpen):
			open = err.Error()
		case err != nil:
			return open, fmt.Errorf("read topic %s: %w", topic, err)
		}
	}
	return open, nil
}
