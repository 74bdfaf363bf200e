package inbox

import (
	"context"
	"errors"
)

// An Outcome says what happened to one message of a batch.
type Outcome struct {
	// Fresh reports whether this call committed the message's effect. It is false if the message
	// was processed before, or if Err is set.
	Fresh bool

	// Err is nil if the message is processed. It is an *IDError if the message cannot be processed
	// at all, a *HandlerError if the handler failed for this message, and ErrEarlierFailed if the
	// message was not tried. Other errors are not the message's fault.
	Err error
}

// ErrEarlierFailed means that a message wasn't tried, because an earlier one with the same key has
// failed. Once that one is processed or given up, this one can be tried.
var ErrEarlierFailed = errors.New("an earlier message with the same key has failed")

// Batch processes many messages in one transaction. fn gets those that the consumer hasn't
// processed before, in the order of msgs. If there are none, Batch doesn't call fn.
//
// If fn fails, Batch rolls back, and processes each message in its own transaction, where fn gets a
// slice of one message. A bad message therefore doesn't fail the others. After a failure, later
// messages with the same topic and key aren't tried.
//
// The result has an Outcome for each message. If the database can't be reached, or ctx ends, every
// message that isn't known to be processed gets that error.
func (db *DB[T]) Batch(ctx context.Context, consumer string, msgs []Message, fn func(ctx context.Context, tx T, fresh []Message) error) []Outcome {
	outcomes := make([]Outcome, len(msgs))
	tryAll := func(process func(m Message, i int) (fresh bool, err error)) {
		failed := map[string]bool{} // by lane
		for i, m := range msgs {
			lane, ordered := m.lane()
			out := Outcome{Err: ErrEarlierFailed}
			if !ordered || !failed[lane] {
				if out.Err = check(consumer, m); out.Err == nil {
					out.Fresh, out.Err = process(m, i)
				}
			}
			failed[lane] = failed[lane] || ordered && out.Err != nil
			outcomes[i] = out
		}
	}

	var good []int // the messages that can be tried
	var events []Message
	tryAll(func(m Message, i int) (bool, error) {
		good, events = append(good, i), append(events, m)
		return false, nil
	})
	fresh, err := db.together(ctx, consumer, events, fn) // of good
	var handler *HandlerError
	switch {
	case err == nil:
		for _, i := range fresh {
			outcomes[good[i]].Fresh = true
		}
		return outcomes
	case errors.As(err, &handler) && len(good) > 1:
		err = nil
	}
	tryAll(func(m Message, i int) (fresh bool, _ error) {
		if err != nil {
			return false, err
		}
		fresh, e := db.Once(ctx, consumer, m, func(ctx context.Context, tx T) error {
			return fn(ctx, tx, msgs[i:i+1:i+1])
		})
		if e != nil && !errors.As(e, &handler) {
			err = e // the database cannot be reached: the rest has the same error
		}
		return fresh, e
	})
	return outcomes
}

// together processes messages in one transaction, all or none. It returns the indexes of those that
// fn got.
func (db *DB[T]) together(ctx context.Context, consumer string, msgs []Message, fn func(ctx context.Context, tx T, fresh []Message) error) (fresh []int, err error) {
	err = db.retry(ctx, func(tx *transaction[T]) (err error) {
		if fresh, err = markAll(ctx, tx, consumer, msgs); err != nil || len(fresh) == 0 {
			return err
		}
		list := make([]Message, len(fresh))
		for n, i := range fresh {
			list[n] = msgs[i]
		}
		return handled(tx.handle(ctx, func(ctx context.Context, own T) error { return fn(ctx, own, list) }))
	})
	return fresh, err
}

// lane returns what the order of a message depends on, if it has an order.
func (m Message) lane() (lane string, ordered bool) {
	return m.Topic + "\x00" + string(m.Key), m.Key != nil
}
