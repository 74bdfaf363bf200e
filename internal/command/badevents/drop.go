package badevents

import (
	"context"
	"time"

	"github.com/walpost/walpost/internal/deadletter"
)

// Drop marks events as given up, with the reason, and returns how many it has marked. An event that is
// not open any more stays as it is, and so does a parked one: see DropParked.
func (t *Topics) Drop(ctx context.Context, selected []*Event, why string) (dropped int, err error) {
	events := dead(selected)
	if len(events) == 0 {
		return 0, nil
	}
	err = t.change(ctx, false, func(c *change) error {
		for _, e := range c.stillOpen(events) {
			c.mark(e, deadletter.Dropped, why, func() { dropped++ })
			if len(c.open) < chunkEvents {
				continue
			}
			if err := c.settle(ctx); err != nil {
				return err
			}
		}
		return c.settle(ctx)
	})
	return dropped, err
}

// stillOpen returns the events that are open as of the newest Read.
func (c *change) stillOpen(events []*deadletter.Entry) (open []*deadletter.Entry) {
	for _, e := range events {
		if now := c.Dead.Fold.Entry(e.Token); now != nil && now.State == deadletter.Open {
			open = append(open, now)
		}
	}
	return open
}

// mark writes what became of an event. done is called when the brokers have it.
func (c *change) mark(e *deadletter.Entry, state deadletter.State, why string, done func()) {
	m := deadletter.Mark{Token: e.Token, State: state, Why: why, Time: time.Now()}
	rec := m.Encode(c.Dead.Topic, e.RecordKey, e.Newest.Partition)
	c.write(rec, func(err error) {
		if err == nil {
			done()
		} else {
			c.broken = err
		}
	})
}
