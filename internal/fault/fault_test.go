package fault

import (
	"errors"
	"fmt"
	"testing"
)

// refusal is an error of another package that says by itself how it behaves.
type refusal struct{ hint string }

func (*refusal) Error() string     { return "refused" }
func (*refusal) NeedsPerson() bool { return true }
func (*refusal) Retryable() bool   { return false }
func (r *refusal) Hint() string    { return r.hint }

func TestBehaviourIsAskedThroughTheChain(t *testing.T) {
	plain := errors.New("connection refused")
	wrap := func(err error) error { return fmt.Errorf("session from 0/16B3748: %w", err) }
	type behaviour struct {
		retryable, person, misconfigured bool
		hint                             string
	}
	for what, c := range map[string]struct {
		err  error
		want behaviour
	}{
		"none at all":                      {nil, behaviour{}},
		"an error that says nothing":       {plain, behaviour{}},
		"wrapped, and says nothing":        {wrap(plain), behaviour{}},
		"retry":                            {Retry(plain), behaviour{retryable: true}},
		"retry, wrapped twice":             {wrap(wrap(Retry(plain))), behaviour{retryable: true}},
		"person":                           {wrap(Person(plain, "drop it")), behaviour{person: true, hint: "drop it"}},
		"config":                           {wrap(Config(plain, "set it")), behaviour{misconfigured: true, hint: "set it"}},
		"config without a hint":            {Config(plain, ""), behaviour{misconfigured: true}},
		"only a hint":                      {wrap(WithHint(plain, "look")), behaviour{hint: "look"}},
		"the outer one decides":            {Retry(wrap(Person(plain, "drop it"))), behaviour{retryable: true, hint: "drop it"}},
		"the outer one decides, reversed":  {Person(wrap(Retry(plain)), "drop it"), behaviour{person: true, hint: "drop it"}},
		"a hint around it fails the run":   {WithHint(Retry(plain), "look"), behaviour{hint: "look"}},
		"a hint, and retry around it":      {Retry(WithHint(plain, "look")), behaviour{retryable: true, hint: "look"}},
		"the outer hint comes first":       {Config(wrap(Config(plain, "inner")), "outer"), behaviour{misconfigured: true, hint: "outer"}},
		"a hint through one without":       {Retry(wrap(Retry(WithHint(plain, "deep")))), behaviour{retryable: true, hint: "deep"}},
		"one of another package":           {wrap(&refusal{"walpost run"}), behaviour{person: true, hint: "walpost run"}},
		"retry around another package's":   {Retry(&refusal{"walpost run"}), behaviour{retryable: true, hint: "walpost run"}},
		"another package's without a hint": {wrap(&refusal{}), behaviour{person: true}},
		"joined":                           {errors.Join(plain, Person(plain, "drop it")), behaviour{person: true, hint: "drop it"}},
	} {
		got := behaviour{Retryable(c.err), NeedsPerson(c.err), Misconfigured(c.err), Hint(c.err)}
		if got != c.want {
			t.Errorf("%s: %+v, must be %+v", what, got, c.want)
		}
	}
}

func TestARepairPassesForWhoHasWorked(t *testing.T) {
	plain := errors.New("refused")
	for what, c := range map[string]struct {
		err             error
		started, worked bool
	}{
		"none":                      {nil, false, false},
		"plain":                     {plain, false, false},
		"retry":                     {Retry(plain), true, true},
		"repair":                    {fmt.Errorf("open: %w", Repair(plain)), false, true},
		"repair with a hint":        {WithHint(Repair(plain), "look"), false, true},
		"repair of a configuration": {Repair(Config(plain, "")), false, true},
		"a person is needed":        {Person(Repair(plain), ""), false, false},
	} {
		if started, worked := Passing(c.err, false), Passing(c.err, true); started != c.started || worked != c.worked {
			t.Errorf("%s: %t at a start and %t later", what, started, worked)
		}
	}
	if err := Repair(Config(plain, "look")); !Misconfigured(err) || Hint(err) != "look" || err.Error() != plain.Error() || !errors.Is(err, plain) {
		t.Errorf("%#v", err)
	}
}

func TestAFaultKeepsItsError(t *testing.T) {
	plain := errors.New("slot \"walpost\" is active for PID 7")
	for _, err := range []error{Retry(plain), Person(plain, "x"), Config(plain, "x"), WithHint(plain, "x")} {
		if err.Error() != plain.Error() {
			t.Errorf("it says %q", err)
		}
		if !errors.Is(err, plain) {
			t.Errorf("%#v is not the error that it was made of", err)
		}
	}
}

func TestTheCommandsAreThoseOfTheHint(t *testing.T) {
	err := Person(errors.New("lost"), "Run walpost recover now.", Advice{Command: "walpost recover"})
	for _, c := range []struct {
		err  error
		want int
	}{{nil, 0}, {errors.New("plain"), 0}, {err, 1}, {fmt.Errorf("check: %w", err), 1}, {Person(fmt.Errorf("%w; behind", err), Hint(err)), 1}, {Retry(err), 1}} {
		if got := Commands(c.err); len(got) != c.want || c.want > 0 && got[0].Command != "walpost recover" {
			t.Errorf("%v: %q", c.err, got)
		}
	}
}
