package outboxtable

import "strings"

// MaxHeaders bounds the headers in HeadersColumn. The relay takes no event with more.
const MaxHeaders = 1000

// EventTypeHeader is the header that a Placement publishes the type of the event in.
const EventTypeHeader = "eventType"

// ReservedHeader reports whether HeadersColumn gives no header with this name, because walpost adds it.
func ReservedHeader(name string) bool { return name == "id" || strings.HasPrefix(name, "walpost.") }
