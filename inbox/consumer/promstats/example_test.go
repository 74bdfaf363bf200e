package promstats_test

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/inbox/consumer/promstats"
)

func ExampleNew() {
	var c *consumer.Consumer // from consumer.New
	prometheus.MustRegister(promstats.New("payments", c))
}
