package inboxtest

import (
	"context"
	"errors"
	"reflect"
	"runtime/debug"
	"testing"

	"github.com/walpost/walpost/inbox"
)

// Twice delivers a message twice, as every relay and broker can, and fails the test unless handler
// takes effect exactly once. effect returns the state that the handler changes, such as the number
// of rows or the rows: the first delivery must change it, and the second one must not.
//
// If handler comes from this package's Handler, Twice interrupts a delivery first: it rolls that
// delivery back after fn has run, as if the process had ended before the commit. The state must
// then be unchanged.
func Twice[S any](t testing.TB, handler func(context.Context, inbox.Message) error, m inbox.Message, effect func() S) {
	t.Helper()
	before := effect()
	asBefore := func(what string) {
		t.Helper()
		if after := effect(); !reflect.DeepEqual(after, before) {
			t.Fatalf("message %s: %s had an effect: it was %+v before, and is %+v now", m.ID, what, before, after)
		}
	}
	err := deliver(context.WithValue(t.Context(), interrupt{}, true), handler, m)
	if errors.Is(err, errInterrupted) {
		asBefore("a delivery that was rolled back (does the handler write outside of its transaction?)")
		err = deliver(t.Context(), handler, m)
	}
	if err != nil {
		t.Fatalf("message %s: the first delivery: %v", m.ID, err)
	}
	first := effect()
	if reflect.DeepEqual(first, before) {
		t.Fatalf("message %s: the first delivery had no effect: it is %+v as before", m.ID, before)
	}
	before = first
	if err := deliver(t.Context(), handler, m); err != nil {
		t.Fatalf("message %s: the second delivery: %v", m.ID, err)
	}
	asBefore("the second delivery")
}

// Fails delivers a message twice, and fails the test unless handler fails each time and leaves the
// state that effect returns as it was. It returns the error. A panic is a *inbox.PanicError.
func Fails[S any](t testing.TB, handler func(context.Context, inbox.Message) error, m inbox.Message, effect func() S) error {
	t.Helper()
	before := effect()
	var err error
	for _, which := range []string{"first", "second"} {
		if err = deliver(t.Context(), handler, m); err == nil {
			t.Fatalf("message %s: the %s delivery did not fail", m.ID, which)
		}
		if after := effect(); !reflect.DeepEqual(after, before) {
			t.Fatalf("message %s: the %s delivery failed, and had an effect: it was %+v before, and is %+v now. The error: %v", m.ID, which, before, after, err)
		}
	}
	return err
}

type interrupt struct{} // a key of a context

var errInterrupted = errors.New("inboxtest: the delivery is interrupted before its commit")

// Handler is inbox.Handler for use with Twice, which can interrupt it before the commit.
func Handler[T any](db *inbox.DB[T], fn inbox.HandlerFunc[T]) func(context.Context, inbox.Message) error {
	return inbox.Handler(db, func(ctx context.Context, tx T, m inbox.Message) error {
		err := fn(ctx, tx, m)
		if err == nil && ctx.Value(interrupt{}) != nil {
			return errInterrupted
		}
		return err
	})
}

// deliver calls the handler as a consumer does.
func deliver(ctx context.Context, handler func(context.Context, inbox.Message) error, m inbox.Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &inbox.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return handler(ctx, m)
}
