package router

import "strings"

// A remark counts one kind of thing that the router ignores because the configuration says so.
type remark struct {
	count uint64
	last  string // the newest, for people
}

func (m *remark) add(what string) { m.count, m.last = m.count+1, what }

// Remarks calls each for every kind of thing that the router ignored: what it was, whether the
// configuration calls it an error, how often it occurred since the start, and the newest. Debezium
// logs a line for each; the relay logs them from time to time. Remarks must not be called at the
// same time as Route.
func (r *Router) Remarks(each func(what string, severe bool, count uint64, last string)) {
	if r.updates.count > 0 {
		each("unexpected update ignored", strings.EqualFold(r.cfg.InvalidOperation, "error"), r.updates.count, r.updates.last)
	}
	if r.notExpanded.count > 0 {
		each("payload not expanded", false, r.notExpanded.count, r.notExpanded.last)
	}
	if r.leftOut.count > 0 {
		each("header of an object left out", false, r.leftOut.count, r.leftOut.last)
	}
	if r.absent.count > 0 {
		each("row without a column of the placement headers", false, r.absent.count, r.absent.last)
	}
	if r.untraced.count > 0 {
		each("trace context left out", false, r.untraced.count, r.untraced.last)
	}
}
