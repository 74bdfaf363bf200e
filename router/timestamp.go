package router

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// Type OIDs of Postgres' catalog (pg_type.dat); they never change.
const (
	oidBytea, oidText, oidJSON, oidXML = 17, 25, 114, 142
	oidBPChar, oidVarchar, oidJSONB    = 1042, 1043, 3802
	oidTimestamp, oidTimestamptz       = 1114, 1184
)

// A stamp is the column of the record's timestamp.
type stamp struct {
	source
	zoned bool
	parse func(raw []byte) (any, error) // microseconds since 1970 of a timestamp's text
}

// stamp takes a timestamp, as the EventRouter does, and also what Debezium fails on and is as clear: a timestamptz, and a timestamp
// in a time.precision.mode that does not give a number.
func (p *planner) stamp(name string) *stamp {
	s, ok := p.column(optionTimestamp, name)
	if !ok {
		return nil
	}
	col := &p.rel.Columns[s.index]
	oid := cmp.Or(col.BaseType, col.TypeOID)
	if oid != oidTimestamp && oid != oidTimestamptz {
		p.fail(ColumnType, &s, "column %s must be a timestamp or timestamptz (it is a %s)", col.Name, col.TypeName)
		return nil
	}
	t, err := pgvalue.Column(&cdc.Column{
		Name: col.Name, TypeOID: oidTimestamp, TypeMod: -1, BaseTypeMod: -1, BaseName: "timestamp", TypeName: "timestamp without time zone",
	}, pgvalue.Modes{Time: "microseconds"})
	if err != nil {
		p.fail(ColumnType, &s, "%s", err)
		return nil
	}
	return &stamp{source: s, zoned: oid == oidTimestamptz, parse: t.Parse}
}

// at is the timestamp that raw says. As in Debezium, digits below the millisecond are cut off.
func (s *stamp) at(raw []byte) (time.Time, error) {
	if s.zoned { // in UTC, as the connection's TimeZone is
		raw = bytes.Replace(raw, []byte("+00"), nil, 1)
	}
	v, err := s.parse(raw)
	if err != nil {
		return time.Time{}, err
	}
	us, ok := v.(int64)
	if !ok {
		return time.Time{}, fmt.Errorf("%s is no time", raw)
	}
	ms := us / 1000 // towards 0, as in Java
	if ms < 0 {
		return time.Time{}, fmt.Errorf("%s: Kafka has no time before 1970", raw)
	}
	if ms > maxMillis {
		return time.Time{}, fmt.Errorf("%s: later than %s, the last time that can be sent to Kafka", raw, time.UnixMilli(maxMillis).UTC().Format(time.DateOnly))
	}
	return time.UnixMilli(ms).UTC(), nil
}

// maxMillis is the last time whose nanoseconds an int64 holds: the Kafka client counts in them, and a later one, such as infinity,
// would silently become another.
const maxMillis = math.MaxInt64 / 1_000_000
