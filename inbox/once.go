package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/walpost/walpost/internal/lib/anytx"
)

// Once calls fn unless the consumer has processed the event of m already. It reports whether it
// called fn. consumer is a name that separates consumers that share a database: each processes the
// event once. The ID and the Scope of m, by default its Topic, identify the event. Once needs no
// other field.
//
// The transaction is the caller's: a pgx.Tx, an *sql.Tx, or one that a library such as sqlc, GORM,
// ent or bun has wrapped. Once refuses a pool, or a connection outside a transaction. If a type
// doesn't show whether it is a transaction, such as ent's Tx, Once finds out with a savepoint (two
// round trips). Once writes a mark, and fn writes the effect in the same transaction. Neither Once
// nor fn commits or rolls back: the caller does.
//
// If another transaction is processing the same event, Once waits for it to end. If that
// transaction commits, Once returns false without calling fn. If it rolls back, Once calls fn.
//
// If fn returns an error or panics, Once makes the transaction fail, so that a mistaken commit
// can't keep the mark without the effect. The caller must roll back, completely or to a savepoint
// from before the call. To skip an event, fn returns nil.
//
// Once is correct in every isolation level. In repeatable read and serializable, Postgres can
// return the errors 40001 or 40P01 where read committed would have waited. The caller must then
// roll back and repeat the whole transaction. Two transactions that call Once for several events
// can deadlock, unless both process the events in the same order, as BatchHandler does.
func Once(ctx context.Context, tx any, consumer string, m Message, fn func(context.Context) error) (bool, error) {
	return Schema("").Once(ctx, tx, consumer, m, fn)
}

// Once is the function Once with the tables of this schema.
func (s Schema) Once(ctx context.Context, tx any, consumer string, m Message, fn func(context.Context) error) (bool, error) {
	c, err := s.of(ctx, tx)
	if err != nil {
		return false, err
	}
	fresh, err := mark(ctx, c, consumer, m)
	if err != nil || !fresh {
		return false, err
	}
	return true, orFail(ctx, c, func() error { return fn(ctx) })
}

// A unique constraint of a partitioned table holds within one generation only. Three rules make the
// marks of all generations exact together:
//
//   - A mark goes into the current generation. Two transactions meet at its unique constraint.
//   - The INSERT locks the table until the end of its transaction, and Retain waits for these locks
//     before it begins a generation. So every mark of an older generation is committed before a
//     statement marks into the current one, and in read committed its snapshot has the mark.
//   - A snapshot of repeatable read can be older than the current generation, and would mark into
//     an ended one. The fence then locks a row that Retain has updated, and Postgres refuses with
//     40001.
//
// If no generation is current, the INSERT fails because of its NULL. The subqueries with LIMIT keep
// the planner from scanning a whole generation.
const (
	fence = `WITH fence AS MATERIALIZED (
	SELECT 1 FROM @inbox_generations
	WHERE ended_at IS NULL AND current_setting('transaction_isolation') <> 'read committed' FOR SHARE) `
	currentGeneration = `(SELECT generation FROM @inbox_generations WHERE ended_at IS NULL)`

	markOne = fence + `INSERT INTO @inbox_processed (generation, consumer, scope, event_id)
	SELECT ` + currentGeneration + `, $1::text, $2::text, $3::text
	WHERE (SELECT true FROM @inbox_processed WHERE consumer = $1::text AND scope = $2::text AND event_id = $3::text LIMIT 1) IS NULL
		AND (SELECT count(*) FROM fence) < 2
	ON CONFLICT DO NOTHING`

	// markMany takes a JSON array of distinct events.
	markMany = fence + `, marked AS (INSERT INTO @inbox_processed (generation, consumer, scope, event_id)
	SELECT ` + currentGeneration + `, $1::text, e."Scope", e."ID"
	FROM json_to_recordset($2::text::json) AS e ("Scope" text, "ID" text)
	WHERE (SELECT true FROM @inbox_processed p WHERE p.consumer = $1::text AND p.scope = e."Scope" AND p.event_id = e."ID" LIMIT 1) IS NULL
		AND (SELECT count(*) FROM fence) < 2
	ORDER BY e."Scope" COLLATE "C", e."ID" COLLATE "C"
	ON CONFLICT DO NOTHING RETURNING scope, event_id)
	SELECT coalesce(json_agg(json_build_object('Scope', scope, 'ID', event_id)), '[]')::text FROM marked`
)

// mark marks an event as processed. It reports whether the event was not marked before.
func mark(ctx context.Context, c anytx.Tx, consumer string, m Message) (fresh bool, err error) {
	if err := check(consumer, m); err != nil {
		return false, err
	}
	n, err := c.Exec(ctx, markOne, consumer, m.scope(), m.ID)
	if err != nil {
		return false, cannotMark(fmt.Errorf("mark event %s: %w", m.ID, err))
	}
	return n == 1, nil
}

// markAll marks the events of the messages, and returns the indexes of those that were not marked
// before.
func markAll(ctx context.Context, c anytx.Tx, consumer string, msgs []Message) (fresh []int, err error) {
	if err := check(consumer, msgs...); err != nil {
		return nil, err
	}
	type event struct{ Scope, ID string }
	first := make(map[event]int, len(msgs))
	distinct := make([]event, 0, len(msgs))
	for i, m := range msgs {
		e := event{m.scope(), m.ID}
		if _, repeated := first[e]; !repeated {
			first[e] = i
			distinct = append(distinct, e)
		}
	}
	if len(distinct) == 0 {
		return nil, nil
	}
	list, err := json.Marshal(distinct)
	if err != nil {
		return nil, err
	}
	var marked []event
	if err := queryJSON(ctx, c, &marked, markMany, consumer, string(list)); err != nil {
		return nil, cannotMark(fmt.Errorf("mark %d events: %w", len(distinct), err))
	}
	for _, e := range marked {
		fresh = append(fresh, first[e])
	}
	slices.Sort(fresh)
	return fresh, nil
}

// cannotMark returns an error of the time before the handler. Only the server's answer can say that
// the message is at fault: its encoding may lack a character of the id.
func cannotMark(err error) error {
	if sqlState(err) == "" {
		return Retryable(err)
	}
	return err
}

// queryJSON runs a query that gives one text of JSON.
func queryJSON(ctx context.Context, c anytx.Tx, into any, sql string, args ...any) error {
	var text string
	if err := c.QueryRow(ctx, sql, args, &text); err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}

func check(consumer string, msgs ...Message) error {
	if consumer == "" || len(consumer) > maxID || !isText(consumer) {
		return Retryable(fmt.Errorf("%q cannot be the name of a consumer: it must be text of 1 to %d bytes", consumer, maxID)) // no message is at fault
	}
	for _, m := range msgs {
		if err := m.check(); err != nil {
			return err
		}
	}
	return nil
}

// orFail calls fn. If fn fails, it makes the transaction fail too.
func orFail(ctx context.Context, c anytx.Tx, fn func() error) (err error) {
	ok := false
	defer func() {
		if ok {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		// The statement fails in any case: by its own error, because the transaction has failed before,
		// or because the connection is gone.
		_, failed := c.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'inbox: the handler failed, so this transaction must be rolled back'; END $$`)
		if failed == nil {
			err = errors.Join(err, errors.New("inbox: the transaction could not be made to fail: roll it back"))
		}
	}()
	err = fn()
	ok = err == nil
	return err
}
