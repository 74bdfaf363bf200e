package router

import "strings"

// A remark counts what the configuration has the router pass over.
type remark struct {
	count uint64
	last  string // the newest, for people
}

func (m *remark) add(what string) { m.count, m.last = m.count+1, what }

// Remarks tells each kind of thing that the router passed over because its configuration says so, where there was one: what it was, whether
// it was asked to be an error, how often since the start, and the newest. What Debezium would log a line for each, the relay logs now and
// then. It must not be called beside Route.
func (r *Router) Remarks(each func(what string, severe bool, count uint64, last string)) {
	if r.updates.count > 0 {
		each("unexpected update ignored", strings.EqualFold(r.cfg.InvalidOperation, "error"), r.updates.count, r.updates.last)
	}
	if r.notExpanded.count > 0 {
		each("payload not expanded", false, r.notExpanded.count, r.notExpanded.last)
	}
}
