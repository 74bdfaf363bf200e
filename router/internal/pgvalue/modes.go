package pgvalue

// Modes are the options of Debezium that decide how values look. A mode that is empty or unknown is
// Debezium's default: the caller validates. Debezium reads them in upper and lower case, but Modes must
// have them in lower case.
type Modes struct {
	Time     string // time.precision.mode
	Decimal  string // decimal.handling.mode
	Binary   string // binary.handling.mode
	Interval string // interval.handling.mode
	HStore   string // hstore.handling.mode
}
