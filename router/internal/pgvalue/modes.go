package pgvalue

// Modes are the options of Debezium that decide how values look. A mode that is empty or unknown is
// Debezium's default: the caller validates.
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
