package statuspage

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// reload shows how the newest attempt to read the configuration again has ended. The start counts as a success.
type reload struct {
	succeeded prometheus.Gauge

	mu  sync.Mutex
	err error
}

func newReload(metrics prometheus.Registerer) *reload {
	r := &reload{succeeded: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "walpost_config_last_reload_successful", Help: "Whether the newest reload of the configuration was accepted; 1 before the first one.",
	})}
	metrics.MustRegister(r.succeeded)
	r.done(nil)
	return r
}

func (r *reload) done(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	r.succeeded.Set(flag(err == nil))
}

// refused is why the newest reload was refused, "" if it was not.
func (r *reload) refused() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return ""
	}
	return r.err.Error()
}
