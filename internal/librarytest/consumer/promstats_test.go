//go:build linux || darwin

package consumer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/walpost/walpost/inbox/consumer/promstats"
	"github.com/walpost/walpost/internal/testenv"
)

func TestPrometheusSeesWhatStatsSay(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1", "a:2", "b:1")
	m := w.start(w.config(nil))
	w.commits(0, 3)
	w.eventually("no lag", func() bool { p := m.Stats().Partitions; return len(p) == 1 && p[0].Lag == 0 })
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(promstats.New(w.name, m.Consumer))
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		v := f.GetMetric()[0]
		got = append(got, fmt.Sprintf("%s %g %d", strings.TrimPrefix(f.GetName(), "walpost_consumer_"),
			v.GetCounter().GetValue()+v.GetGauge().GetValue(), len(v.GetLabel())))
	}
	want := []string{
		"buffered 0 3", "dead_total 0 1", "dead_waiting 0 1", "failed_total 0 1", "handled_total 3 1", "in_flight 0 1", "joined 1 1", "lag 0 3",
		"missed_total 0 1", "oldest_seconds 0 3", "paused 0 3", "retried_total 0 1", "split_total 0 1", "uncounted_total 0 1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
