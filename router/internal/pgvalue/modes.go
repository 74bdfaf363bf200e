package pgvalue

import (
	"fmt"
	"slices"
	"strings"
)

// Modes are the options of Debezium that decide how values look. An empty mode is Debezium's
// default.
type Modes struct {
	Time     string // time.precision.mode
	Decimal  string // decimal.handling.mode
	Binary   string // binary.handling.mode
	Interval string // interval.handling.mode
	HStore   string // hstore.handling.mode
}

// The values of Debezium's options, with the default first. Debezium reads them in upper and lower
// case, but Modes must have them as they stand here.
var (
	TimeModes     = []string{"adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"}
	DecimalModes  = []string{"precise", "string", "double"}
	BinaryModes   = []string{"bytes", "base64", "base64-url-safe", "hex"}
	IntervalModes = []string{"numeric", "string"}
	HStoreModes   = []string{"json", "map"}
)

// Validate returns an error for a mode that does not exist.
func (m Modes) Validate() error {
	for _, o := range []struct {
		option, value string
		valid         []string
	}{
		{"time.precision.mode", m.Time, TimeModes},
		{"decimal.handling.mode", m.Decimal, DecimalModes},
		{"binary.handling.mode", m.Binary, BinaryModes},
		{"interval.handling.mode", m.Interval, IntervalModes},
		{"hstore.handling.mode", m.HStore, HStoreModes},
	} {
		if o.value != "" && !slices.Contains(o.valid, o.value) {
			return fmt.Errorf("%s: must be one of %s (got %q)", o.option, strings.Join(o.valid, ", "), o.value)
		}
	}
	return nil
}

// withDefaults returns the modes with the defaults for those that are empty.
func (m Modes) withDefaults() Modes {
	for _, o := range []struct {
		value *string
		valid []string
	}{{&m.Time, TimeModes}, {&m.Decimal, DecimalModes}, {&m.Binary, BinaryModes}, {&m.Interval, IntervalModes}, {&m.HStore, HStoreModes}} {
		if *o.value == "" {
			*o.value = o.valid[0]
		}
	}
	return m
}
