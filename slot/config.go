package slot

import (
	"math"
	"time"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/size"
)

// Config says how often the slot is read, when the WAL that it holds becomes a warning or critical, and what the breaker does.
// It is the section monitor of walpost.yaml.
type Config struct {
	Interval         time.Duration `yaml:"interval"`
	RetainedWarn     size.Bytes    `yaml:"retained_warn"`
	RetainedCritical size.Bytes    `yaml:"retained_critical"`
	// WALDiskSize is how large pg_wal may become on the server's disk, which SQL cannot tell: the size of its volume,
	// or the share of the volume that WAL may take. 0 is unknown; then only max_slot_wal_keep_size is forecast.
	WALDiskSize size.Bytes `yaml:"wal_disk_size"`
	// Breaker is none, alert or stop_and_drop_slot: what happens when the slot holds RetainedCritical of WAL, or when
	// WALDiskSize will be used up within BreakerForecast.
	Breaker string `yaml:"breaker"`
	// BreakerForecast needs WALDiskSize. With 0 only RetainedCritical trips the breaker.
	BreakerForecast time.Duration `yaml:"breaker_forecast"`

	// Tableless says that logical messages are the only events, so that walpost recover refuses.
	Tableless bool `yaml:"-"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Interval: 10 * time.Second, RetainedWarn: 1 << 30, RetainedCritical: 10 << 30, Breaker: BreakerOff}
}

// limited is c with the limits of another Config.
func (c Config) limited(of Config) Config {
	of.Interval, of.Breaker, of.Tableless = c.Interval, c.Breaker, c.Tableless
	return of
}

// Validate returns everything that is wrong with the Config.
func (c *Config) Validate() (found conf.Problems) {
	conf.Range(&found, "monitor.interval", c.Interval, time.Second, time.Hour)
	conf.Range(&found, "monitor.retained_warn", c.RetainedWarn, 1, math.MaxInt64)
	if c.RetainedCritical < c.RetainedWarn {
		found.Add("monitor.retained_critical", conf.MustBe, "at least monitor.retained_warn, "+c.RetainedWarn.String(), c.RetainedCritical)
	}
	if c.WALDiskSize != 0 {
		conf.Range(&found, "monitor.wal_disk_size", c.WALDiskSize, 64<<20, math.MaxInt64)
	}
	found.OneOf("monitor.breaker", c.Breaker, BreakerOff, BreakerAlert, BreakerDrop)
	conf.Range(&found, "monitor.breaker_forecast", c.BreakerForecast, 0, math.MaxInt64)
	if c.BreakerForecast != 0 && c.Breaker == BreakerOff {
		found.Add("monitor.breaker_forecast", conf.Contradicts, "monitor.breaker: none", c.BreakerForecast)
	}
	if c.BreakerForecast != 0 && c.WALDiskSize == 0 {
		found.Add("monitor.wal_disk_size", conf.Required, "with monitor.breaker_forecast: the breaker forecasts when the disk is full", nil)
	}
	return found
}
