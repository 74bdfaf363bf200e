package consumer

import (
	"context"
	"time"
)

// Measure measures once, as soon as the Consumer has its client.
func (c *Consumer) Measure(ctx context.Context) {
	c.begun()
	c.measure(ctx)
}

// CompareRetention compares once, as soon as the Consumer has its client.
func (c *Consumer) CompareRetention(ctx context.Context) bool {
	c.begun()
	return c.compareRetention(ctx)
}

func (c *Consumer) begun() {
	for begun := false; !begun; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		begun = c.cl != nil
		c.mu.Unlock()
	}
}

// Closing counts the partitions in which nothing new starts.
func (c *Consumer) Closing() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.s.partitions {
		if p.closing {
			n++
		}
	}
	return n
}
