package inbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// A HandlerFunc writes the effect of a message in tx, and does not end tx. If it returns an error
// or panics, its work is rolled back. ctx ends after the HandlerTimeout of the consumer or the
// Worker.
type HandlerFunc[T any] func(ctx context.Context, tx T, m Message) error

// Handler returns a consumer.Handler that calls fn once for each event: it marks the event as
// processed by m.Group, and calls fn in the same transaction (see DB.Once). A second delivery does
// nothing. fn can be the Handler of a Worker, too.
func Handler[T any](db *DB[T], fn HandlerFunc[T]) func(ctx context.Context, m Message) error {
	return func(ctx context.Context, m Message) error {
		_, err := db.Once(ctx, m.Group, m, func(ctx context.Context, tx T) error { return fn(ctx, tx, m) })
		return err
	}
}

// BatchHandler is Handler for a consumer.BatchHandler. One transaction contains the marks and the
// effects of a batch, whose messages must have the same Group. fn gets the messages of all types
// that the group hasn't processed before, and isn't called if there are none. If fn fails, the
// consumer retries each message on its own.
func BatchHandler[T any](db *DB[T], fn func(ctx context.Context, tx T, fresh []Message) error) func(ctx context.Context, batch []Message) error {
	return func(ctx context.Context, batch []Message) error {
		if len(batch) == 0 {
			return nil
		}
		for _, m := range batch {
			if m.Group != batch[0].Group {
				return fmt.Errorf("inbox: the messages of a batch have the groups %q and %q: a batch must have one", batch[0].Group, m.Group)
			}
		}
		return db.together(ctx, batch[0].Group, batch, fn)
	}
}

// together processes messages in one transaction, all or none.
func (db *DB[T]) together(ctx context.Context, consumer string, msgs []Message, fn func(ctx context.Context, tx T, fresh []Message) error) error {
	return db.retry(ctx, func(tx *transaction[T]) error {
		fresh, err := markAll(ctx, tx, consumer, msgs)
		if err != nil || len(fresh) == 0 {
			return err
		}
		list := make([]Message, len(fresh))
		for n, i := range fresh {
			list[n] = msgs[i]
		}
		return handled(tx.handle(ctx, func(ctx context.Context, own T) error { return fn(ctx, own, list) }))
	})
}

// ByType returns a HandlerFunc that calls the function for the message's Type. unknown gets the
// messages of other types: Ignore skips them, and nil refuses them with a Permanent *TypeError.
// That includes an empty type. A message without the header eventType is refused with a Retryable
// error, because it isn't the message's fault that the relay doesn't place the type in a header.
func ByType[T any](types map[string]HandlerFunc[T], unknown HandlerFunc[T]) HandlerFunc[T] {
	types = maps.Clone(types)
	return func(ctx context.Context, tx T, m Message) error {
		switch fn := types[m.Type()]; {
		case fn != nil:
			return fn(ctx, tx, m)
		case unknown != nil:
			return unknown(ctx, tx, m)
		}
		if slices.ContainsFunc(m.Headers, func(h Header) bool { return h.Key == typeHeader }) {
			return Permanent(&TypeError{m.Type()})
		}
		return Retryable(&TypeError{})
	}
}

// Ignore does nothing. Its message counts as processed.
func Ignore[T any](context.Context, T, Message) error { return nil }

// A TypeError means that no function handles events of this type, or that the message has no type.
type TypeError struct{ Type string }

func (e *TypeError) Error() string {
	if e.Type == "" {
		return fmt.Sprintf("the message has no event type: the event must have one, and the relay must place it in the header %s (router.table.fields.additional.placement)", typeHeader)
	}
	return fmt.Sprintf("no function handles events of the type %q", e.Type)
}
