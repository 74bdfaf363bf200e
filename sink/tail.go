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
		if err := t.partition(ctx, topic, p, since, each); err != nil {
			return fmt.Errorf("read topic %s: partition %d: %w", topic, p, err)
		}
	}
	return nil
}

func (t *TailReader) partition(ctx context.Context, topic string, partition int32, since time.Time, each func(r *TailRecord) error) error {
	next, end := int64(-1), int64(-1)
	given := int64(0) // the offset behind the newest record that each was called with: none comes twice
	var pause backoff
	for give := time.Now().Add(tailPatience); ; {
		err := func() (err error) {
			if end < 0 {
				at := int64(-2) // the first there is
				if !since.IsZero() {
					at = max(since.UnixMilli(), 0)
				}
				if next, err = offset(ctx, t.cl, topic, partition, at); err != nil {
					return err
				}
				if end, err = offset(ctx, t.cl, topic, partition, -1); err != nil {
					end = -1
					return err
				}
				if next < 0 { // nothing is that young
					next = end
				}
			}
			for next < end {
				fp, to, err := fetch(ctx, t.cl, topic, partition, next)
				if err != nil {
					return err
				}
				for _, r := range fp.Records {
					for _, h := range r.Headers {
						if h.Key != "id" || r.Offset < given {
							continue
						}
						given = r.Offset + 1
						out := TailRecord{ID: h.Value, Key: r.Key, Value: r.Value}
						if r.Attrs.TimestampType() == 0 {
							out.Time = r.Timestamp
						}
						if err := each(&out); err != nil {
							return stopped{err}
						}
						break
					}
				}
				switch {
				case to > next:
					next, pause, give = to, 0, time.Now().Add(tailPatience)
				case fp.LastStableOffset <= next: // what follows is of a transaction that nobody has ended
					return nil
				default:
					return errors.New("the broker gives no records")
				}
			}
			return nil
		}()
		var own stopped
		switch {
		case err == nil:
			return nil
		case errors.As(err, &own):
			return own.error
		case denied(err) || errors.Is(err, kerr.OffsetOutOfRange) && next >= end || time.Now().After(give):
			return err
		case errors.Is(err, kerr.OffsetOutOfRange): // deleted meanwhile
			end = -1
		}
		if !pause.sleep(ctx) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// stopped is an error of the caller's own.
type stopped struct{ error }
