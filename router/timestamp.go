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

// A stamp is the column of the record's timestamp.
type stamp struct {
	column
	zoned  bool                          // the column is a timestamptz
	micros func(raw []byte) (any, error) // microseconds since 1970
}

// stamp accepts a timestamp, as the EventRouter does. It also accepts a timestamptz, and every
// time.precision.mode. Debezium fails on both, although their meaning is clear.
func (p *planner) stamp(name string) *stamp {
	c, ok := p.find(optionTimestamp, name)
	if !ok {
		return nil
	}
	col := &p.rel.Columns[c.index]
	oid := cmp.Or(col.BaseType, col.TypeOID)
	if oid != oidTimestamp && oid != oidTimestamptz {
		p.fail(ColumnType, &c, "column %s must be a timestamp or timestamptz (it is a %s)", col.Name, col.TypeName)
		return nil
	}
	t, err := pgvalue.Column(&cdc.Column{
		Name: col.Name, TypeOID: oidTimestamp, TypeMod: -1, BaseTypeMod: -1, BaseName: "timestamp", TypeName: "timestamp without time zone",
	}, pgvalue.Modes{Time: "microseconds"})
	if err != nil {
		p.fail(ColumnType, &c, "%s", err)
		return nil
	}
	return &stamp{column: c, zoned: oid == oidTimestamptz, micros: t.Parse}
}

// setTime sets the timestamp from the column, unless the column is NULL.
func (p *plan) setTime(row *row, rec *cdc.Record) *Problem {
	if p.stamp == nil {
		return nil
	}
	raw := row.text(&p.stamp.column)
	if raw == nil {
		return nil
	}
	t, err := p.stamp.time(raw)
	if err != nil {
		return p.stamp.bad(raw, err)
	}
	rec.Time = t
	return nil
}

// time is the timestamp of a text. As in Debezium, digits below the millisecond are cut off.
func (s *stamp) time(raw []byte) (time.Time, error) {
	if s.zoned { // the connection's TimeZone is UTC
		raw = bytes.Replace(raw, []byte("+00"), nil, 1)
	}
	v, err := s.micros(raw)
	if err != nil {
		return time.Time{}, err
	}
	us, ok := v.(int64)
	if !ok {
		return time.Time{}, fmt.Errorf("%s is no time", raw)
	}
	ms := us / 1000 // rounds towards 0, as in Java
	if ms < 0 {
		return time.Time{}, fmt.Errorf("%s: Kafka has no time before 1970", raw)
	}
	if ms > maxMillis {
		return time.Time{}, fmt.Errorf("%s: later than %s, the last time that can be sent to Kafka", raw, time.UnixMilli(maxMillis).UTC().Format(time.DateOnly))
	}
	return time.UnixMilli(ms).UTC(), nil
}

// maxMillis is the last time whose nanoseconds fit into an int64. The Kafka client counts
// nanoseconds, so a later time, such as infinity, would silently become another time.
const maxMillis = math.MaxInt64 / 1_000_000
