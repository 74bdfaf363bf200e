package badevents

import (
	"context"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
)

// Drop marks events as given up, with the reason, and returns how many it has marked. An event that is
// not open any more stays as it is, and so does a parked one: see DropParked.
func (t *Topics) Drop(ctx context.Context, selected []*Event, why string) (dropped int, err error) {
	events := dead(selected)
	if len(events) == 0 {
		return 0, nil
	}
	err = t.change(ctx, func(c *change) error {
		for _, e := range c.stillOpen(events) {
			if err := c.Wait(ctx, time.Time{}, c.Room); err != nil {
				return err
			}
			c.close(c.marks(e, deadletter.Dropped, why), func() { dropped++ })
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

// marks are the marks of what became of an event.
func (c *change) marks(e *deadletter.Entry, state deadletter.State, why string) []*cdc.Record {
	return e.Marks(c.Dead.Topic, deadletter.Mark{Token: e.Token, State: state, Why: why, Time: time.Now()})
}

// close sends the marks of an event. done is called when the brokers have all of them.
func (c *change) close(marks []*cdc.Record, done func()) {
	left := len(marks)
	for _, rec := range marks {
		c.mark(rec, func() {
			if left--; left == 0 {
				done()
			}
		})
	}
}
