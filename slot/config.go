package slot

import (
	"time"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/size"
)

// Config says how often the slot is read, when the WAL that it holds becomes a warning or critical, and what the breaker does.
// It is the section monitor of walpost.yaml.
type Config struct {
	// How often walpost examines the slot and the publication.
	Interval time.Duration `yaml:"interval" min:"1s" max:"1h" example:"30s"`
	// Warn when the slot retains this much WAL.
	RetainedWarn size.Bytes `yaml:"retained_warn" min:"1" example:"5GiB" reload:"true"`
	// Report the slot as at risk when it retains this much WAL.
	RetainedCritical size.Bytes `yaml:"retained_critical" min:"1" example:"50GiB" reload:"true"`
	// How large `pg_wal` may become; `0` means unknown. Without `max_slot_wal_keep_size` on the server,
	// the forecast needs it.
	WALDiskSize size.Bytes `yaml:"wal_disk_size" words:"0" min:"64MiB" example:"100GiB" reload:"true"`
	// What happens when the slot retains `monitor.retained_critical`, or when
	// `monitor.breaker_forecast` trips the breaker. `stop_and_drop_slot` stops delivery and drops the
	// slot, even a halted relay's, before the database's disk is full. Run
	// [`walpost recover`](backfill.md) afterwards.
	Breaker string `yaml:"breaker" words:"none|alert|stop_and_drop_slot"`
	// Trip the breaker when `monitor.wal_disk_size` will be used up within this time, unless the server
	// would invalidate the slot first.
	BreakerForecast time.Duration `yaml:"breaker_forecast" min:"0s" example:"30m" reload:"true"`

	// Tableless says that logical messages are the only events, so that walpost recover refuses.
	Tableless bool `yaml:"-"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Interval: 10 * time.Second, RetainedWarn: 1 << 30, RetainedCritical: 10 << 30, Breaker: BreakerOff}
}

// Validate returns what is wrong with the keys together. conf.Check has what is wrong with each.
func (c *Config) Validate() (found conf.Problems) {
	if c.RetainedCritical < c.RetainedWarn {
		found.Add("monitor.retained_critical", conf.MustBe, "at least monitor.retained_warn, "+c.RetainedWarn.String(), c.RetainedCritical)
	}
	if c.BreakerForecast != 0 && c.Breaker == BreakerOff {
		found.Add("monitor.breaker_forecast", conf.Contradicts, "monitor.breaker: none", c.BreakerForecast)
	}
	if c.BreakerForecast != 0 && c.WALDiskSize == 0 {
		found.Add("monitor.wal_disk_size", conf.Required, "with monitor.breaker_forecast: the breaker forecasts when the disk is full", nil)
	}
	return found
}
