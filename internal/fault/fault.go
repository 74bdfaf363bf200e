// Package fault gives errors behaviour: whether trying again can help, whether a person is needed,
// and what to do next.
//
// Callers ask for behaviour through the functions here (errors.As below them), never for types. An
// error that says nothing is not retryable and needs no person: it fails the run.
package fault

import "errors"

type kind uint8

const (
	retry kind = iota + 1
	person
	config
)

// fault is an error with a behaviour. Its text is the wrapped error's.
type fault struct {
	err  error
	kind kind
	hint string
	cmds []Advice
}

func (f *fault) Error() string       { return f.err.Error() }
func (f *fault) Unwrap() error       { return f.err }
func (f *fault) Retryable() bool     { return f.kind == retry }
func (f *fault) NeedsPerson() bool   { return f.kind == person }
func (f *fault) Misconfigured() bool { return f.kind == config }
func (f *fault) Hint() string        { return f.hint }
func (f *fault) Commands() []Advice  { return f.cmds }

// Retry marks err as one that may go away by itself: the network, a server that restarts, a slot in
// use.
func Retry(err error) error { return &fault{err: err, kind: retry} }

// Person marks err as one that only a person can resolve (exit code 3). The hint says what to do
// next: a statement, a command, a setting. commands are those of the hint that a reader may copy.
func Person(err error, hint string, commands ...Advice) error {
	return &fault{err: err, kind: person, hint: hint, cmds: commands}
}

// Config marks err as wrong configuration (exit code 2). The hint may be empty.
func Config(err error, hint string) error { return &fault{err: err, kind: config, hint: hint} }

// WithHint adds what to do next to an error that fails the run (exit code 1).
func WithHint(err error, hint string) error { return &fault{err: err, hint: hint} }

// ForPerson is embedded by an error type that only a person can resolve. No retry helps, whatever
// the error wraps.
type ForPerson struct{}

func (ForPerson) NeedsPerson() bool { return true }
func (ForPerson) Retryable() bool   { return false }

// Retryable says whether the outermost error in err's chain that has an opinion says that trying
// again can help.
func Retryable(err error) bool {
	var f interface{ Retryable() bool }
	return errors.As(err, &f) && f.Retryable()
}

// Repair marks err as one that somebody can repair outside walpost, such as a refused login. A start
// fails with it. Who has worked before waits, because a changed password or a role that is made again
// causes it for a moment. In all else, err behaves as without the mark.
func Repair(err error) error { return repair{err} }

type repair struct{ error }

func (r repair) Unwrap() error { return r.error }

// Passing is Retryable for a caller that may have worked before. If it has, what can be repaired
// outside walpost can pass, too.
func Passing(err error, worked bool) bool {
	return Retryable(err) || worked && !NeedsPerson(err) && errors.As(err, new(repair))
}

// An Awaited is an error for something that is being asked for. The caller tries again once Ready is true.
type Awaited interface {
	error
	Ready() bool
	Stalled() error // why there is no answer so far, or nil while the first attempt goes on
}

// Awaits returns what has to be waited for before what gave err can be tried again, or nil.
func Awaits(err error) Awaited {
	a, _ := errors.AsType[Awaited](err)
	return a
}

// NeedsPerson says whether only a person can resolve err.
func NeedsPerson(err error) bool {
	var f interface{ NeedsPerson() bool }
	return errors.As(err, &f) && f.NeedsPerson()
}

// Misconfigured says whether err is a matter of configuration.
func Misconfigured(err error) bool {
	var f interface{ Misconfigured() bool }
	return errors.As(err, &f) && f.Misconfigured()
}

// Hint returns what to do next, or "".
func Hint(err error) (hint string) {
	first(err, func(f interface {
		error
		Hint() string
	},
	) bool {
		hint = f.Hint()
		return hint != ""
	})
	return hint
}

// Commands returns the commands that the hint of err may contain, so that a page can offer each of them to be copied.
func Commands(err error) (all []Advice) {
	first(err, func(f interface {
		error
		Commands() []Advice
	},
	) bool {
		all = f.Commands()
		return len(all) > 0
	})
	return all
}

// first calls has for the errors of err's chain that are an F, until has returns true.
func first[F error](err error, has func(F) bool) {
	for f, ok := errors.AsType[F](err); ok && !has(f); f, ok = errors.AsType[F](errors.Unwrap(f)) {
	}
}
