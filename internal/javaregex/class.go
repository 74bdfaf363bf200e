package javaregex

import (
	"errors"
	"slices"
)

// class reads a character class after its [. If closed is set, it reads the final ] too. If it is
// not set, it reads the right side of an && and leaves the ].
func (t *translator) class(closed bool) (set, error) {
	negated := false
	if closed && t.at(0) == '^' {
		negated = true
		t.i++
	}
	var s set
	empty := true
	for {
		switch c := t.at(0); {
		case t.i >= len(t.in):
			return nil, errors.New("a class without ]")
		case c == ']' && empty:
			return nil, t.unsupported("a ] at the start of a class", 1)
		case c == ']':
			if closed {
				t.i++
			}
			if negated {
				s = s.negate()
			}
			return s, nil
		case c == '[':
			t.i++
			inner, err := t.class(true)
			if err != nil {
				return nil, err
			}
			s, empty = s.union(inner), false
		case t.peek("&&"):
			if empty || !closed {
				return nil, t.unsupported("an intersection of this form", 3)
			}
			t.i += 2
			right, err := t.right()
			if err != nil {
				return nil, err
			}
			s = s.intersect(right)
		default:
			part, err := t.part()
			if err != nil {
				return nil, err
			}
			s, empty = s.union(part), false
		}
	}
}

// right reads the right side of an &&: either classes, or characters up to the end of the class. A
// mixture of both is an error, because Java reads mixtures in ways that nobody expects.
func (t *translator) right() (s set, err error) {
	if t.at(0) != '[' {
		if t.at(0) == ']' || t.at(0) == '&' || t.at(0) == '^' {
			return nil, t.unsupported("an intersection of this form", 3)
		}
		from := t.i
		if s, err = t.class(false); err == nil && slices.Contains(t.in[from:t.i], token{r: '['}) {
			return nil, t.unsupported("an intersection of this form", 3)
		}
		return s, err
	}
	for t.at(0) == '[' {
		t.i++
		inner, err := t.class(true)
		if err != nil {
			return nil, err
		}
		s = s.union(inner)
	}
	if t.at(0) != ']' && !t.peek("&&") {
		return nil, t.unsupported("an intersection of this form", 3)
	}
	return s, nil
}

// part reads one part of a class: a character, a range, or an escape that is a class.
func (t *translator) part() (set, error) {
	from, isClass, err := t.member()
	if err != nil || isClass {
		return from, err
	}
	s := from
	if t.at(0) == '-' && t.at(1) != '[' && t.at(1) != ']' && t.i+1 < len(t.in) {
		t.i++
		if t.peek("&&") {
			return nil, t.unsupported("an intersection of this form", 3)
		}
		to, isClass, err := t.member()
		if err != nil {
			return nil, err
		}
		if isClass || to[0].from < from[0].from {
			return nil, t.unsupported("a range of this form", 1)
		}
		s = set{{from[0].from, to[0].to}}
	}
	if t.fold {
		s = s.fold()
	}
	return s, nil
}

// member reads a character or an escape. isClass is set if it is an escape that is a class.
func (t *translator) member() (s set, isClass bool, err error) {
	if t.at(0) == '\\' {
		s, isClass, err = t.character()
		if isClass && t.at(0) == '-' && t.at(1) != ']' && t.at(1) != 0 {
			return nil, false, t.unsupported("a class at the start of a range", 2)
		}
		return s, isClass, err
	}
	r := t.in[t.i].r
	t.i++
	return one(r), false, nil
}
