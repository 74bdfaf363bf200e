package consumer

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
