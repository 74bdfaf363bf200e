package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// An Asker asks the brokers about topics, once each, and changes nothing. It must be used by one goroutine at a time.
type Asker struct {
	cl    *kgo.Client
	dials Dials
	known map[string]*Topic
	down  error // the brokers did not answer: the Asker does not ask again
}

// NewAsker makes an Asker. It does not connect.
func NewAsker(cfg Config) (*Asker, error) {
	a := &Asker{known: map[string]*Topic{}}
	var err error
	a.cl, err = cfg.NewClient(&a.dials)
	return a, err
}

// Close frees the connections.
func (a *Asker) Close() { a.cl.Close() }

// askPatience is how long a question waits for the brokers.
const askPatience = 5 * time.Second

// Topic returns what the brokers say of a topic. Its Err says why the topic cannot be used.
func (a *Asker) Topic(ctx context.Context, name string) *Topic {
	if t, ok := a.known[name]; ok {
		return t
	}
	if a.down != nil {
		return &Topic{Name: name, Err: a.down}
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	t, err := DescribeTopic(ctx, a.cl, name, "max.message.bytes", "cleanup.policy")
	if err != nil {
		a.down = a.dials.Explain(fmt.Errorf("the brokers cannot be asked: %w", err))
		return &Topic{Name: name, Err: a.down}
	}
	if t.Err != nil {
		t.Err = Reason(name, t.Err)
	}
	a.known[name] = t
	return t
}
