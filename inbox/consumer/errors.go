package consumer

import (
	"errors"
	"strings"

	"github.com/walpost/walpost/inbox"
)

// maxStack bounds the stack in a dead letter, so that a letter is hardly larger than its message.
const maxStack = 2 << 10

// stackOf returns where the handler panicked: the first frames, without those of the recovery. It is
// "" if err is no panic.
func stackOf(err error) string {
	p, ok := errors.AsType[*inbox.PanicError](err)
	if !ok {
		return ""
	}
	stack := string(p.Stack)
	if _, below, ok := strings.Cut(stack, "\npanic("); ok {
		if _, rest, ok := strings.Cut(below, "\n\t"); ok { // the file of panic itself
			_, stack, _ = strings.Cut(rest, "\n")
		}
	}
	return cut(stack, maxStack)
}

// cut returns the beginning of a text.
func cut(s string, size int) string {
	if len(s) > size {
		return strings.ToValidUTF8(s[:size], "") + " …"
	}
	return s
}
