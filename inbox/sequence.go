package inbox

import (
	"context"
	"fmt"

	"github.com/walpost/walpost/internal/anytx"
)

// An Observation says how the number of an event fits those that were observed before.
type Observation struct {
	Verdict  Verdict
	Expected int64 // the number that should have come
	Got      int64
}

// A Verdict is the kind of an Observation.
type Verdict string

const (
	// InSequence means that Got is Expected.
	InSequence Verdict = "in sequence"
	// Missing means that the numbers from Expected up to Got-1 have not come. They are remembered.
	Missing Verdict = "missing"
	// Late means that the number was missing, and has come now.
	Late Verdict = "late"
	// Repeated means that the number was observed before, or is below the first number.
	Repeated Verdict = "repeated"
)

// Observe compares the number of an event with those of the same key that the consumer observed
// before, and remembers it, in the caller's transaction. first is the number of the first event of
// every key. Observe decides nothing: the caller handles the event, or refuses it by rolling back, as
// the Observation suggests. Observers of one key wait for each other's transactions.
//
// inbox_sequences has one row for each key. Nothing removes it.
func Observe(ctx context.Context, tx any, consumer, key string, first, number int64) (Observation, error) {
	o := Observation{Got: number}
	c, err := anytx.Of(ctx, tx)
	if err != nil {
		return o, err
	}
	if err := checkIDs(consumer, key); err != nil {
		return o, err
	}
	var late bool
	err = c.QueryRow(ctx, `INSERT INTO inbox_sequences AS s (consumer, key, next, missing, expected)
		VALUES ($1, $2, greatest($3::bigint, $4::bigint + 1),
			CASE WHEN $4::bigint > $3::bigint THEN int8multirange(int8range($3::bigint, $4::bigint)) ELSE '{}' END, $3::bigint)
		ON CONFLICT (consumer, key) DO UPDATE SET
			expected = s.next,
			late = s.missing @> $4::bigint,
			next = greatest(s.next, $4::bigint + 1),
			missing = CASE WHEN $4::bigint > s.next THEN s.missing + int8multirange(int8range(s.next, $4::bigint))
				ELSE s.missing - int8multirange(int8range($4::bigint, $4::bigint, '[]')) END
		RETURNING expected, late`, []any{consumer, key, first, number}, &o.Expected, &late)
	switch {
	case err != nil:
		return o, fmt.Errorf("observe number %d of %s: %w", number, key, err)
	case number == o.Expected:
		o.Verdict = InSequence
	case number > o.Expected:
		o.Verdict = Missing
	case late:
		o.Verdict = Late
	default:
		o.Verdict = Repeated
	}
	return o, nil
}
