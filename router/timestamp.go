package router

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// stamp accepts a timestamp, as the EventRouter does. It also accepts a timestamptz, and every
// time.precision.mode. Debezium fails on both, although their meaning is clear.
func (p *planner) stamp(name string) *column {
	c, ok := p.find(optionTimestamp, name)
	if !ok {
		return nil
	}
	col := &p.rel.Columns[c.index]
	if oid := cmp.Or(col.BaseType, col.TypeOID); oid != pgtype.TimestampOID && oid != pgtype.TimestamptzOID {
		p.fail(ColumnType, &c, "column %s must be a timestamp or timestamptz (it is a %s)", col.Name, col.TypeName)
		return nil
	}
	return &c
}

// setTime sets the timestamp from the column, unless the column is NULL.
func (p *plan) setTime(row *row, rec *cdc.Record) *Problem {
	if p.stamp == nil {
		return nil
	}
	raw := row.text(p.stamp)
	if raw == nil {
		return nil
	}
	t, err := timeOf(raw)
	if err != nil {
		return p.stamp.bad(raw, err)
	}
	rec.Time = t
	return nil
}

// timeOf is the timestamp of a text. As in Debezium, digits below the millisecond are cut off.
func timeOf(raw []byte) (time.Time, error) {
	us, err := pgvalue.Micros(raw)
	if err != nil {
		return time.Time{}, err
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
