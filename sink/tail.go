package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A TailReader reads what is in topics already: their newest records. It is used by one goroutine at a time.
type TailReader struct{ cl *kgo.Client }

// ReadTails makes a TailReader. It does not connect.
func ReadTails(cfg Config) (*TailReader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cl, err := newAdmin(cfg.withDefaults())
	if err != nil {
		return nil, err
	}
	return &TailReader{cl}, nil
}

// Close frees the connections.
func (t *TailReader) Close() { t.cl.Close() }

// tailPatience is how long a partition may give nothing before its reading fails.
const tailPatience = 30 * time.Second

// A TailRecord is a record with an event id. Its bytes are valid during the call that hands it over.
type TailRecord struct {
	ID, Key, Value []byte
	Time           time.Time // zero where it is the broker's (message.timestamp.type LogAppendTime), which says nothing of the event
}

// Records calls each with every committed record of topic that has the header id, from the first one on whose timestamp is not before
// since; the zero time is from the beginning. A topic that does not exist has none.
func (t *TailReader) Records(ctx context.Context, topic string, since time.Time, each func(r *TailRecord) error) error {
	asked, cancel := context.WithTimeout(ctx, tailPatience)
	defer cancel()
	meta, err := describeTopics(asked, t.cl, topic)
	if err != nil {
		return fmt.Errorf("read topic %s: %w", topic, err)
	}
	n, err := usable(&meta.Topics[0])
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read topic %s: %w", topic, err)
	}
	for p := range n {
		given := int64(0) // the offset behind the newest record that each was called with: none comes twice
		r := newReader(t.cl, topic, p, func(rec *kgo.Record) error {
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
		})
		r.patience, r.stable = tailPatience, true // what is behind the stable end is of a transaction that nobody has ended
		if !since.IsZero() {
			r.from = max(since.UnixMilli(), 0)
		}
		if err := r.toEnd(ctx); err != nil {
			return fmt.Errorf("read topic %s: %w", topic, err)
		}
	}
	return nil
}
