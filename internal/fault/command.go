package fault

import (
	"strings"
	"sync/atomic"
)

var options atomic.Pointer[string]

// SetOptions says how this program was told its configuration, as words of a shell: --config walpost.yaml. Hints repeat it in the commands that they
// advise, so that a command can be pasted. A program that has walpost as a library has no such options.
func SetOptions(words string) { options.Store(&words) }

// Command is a walpost command for a hint, with the options of this program.
func Command(words ...string) string {
	text := "walpost " + strings.Join(words, " ")
	if o := options.Load(); o != nil && *o != "" {
		text += " " + *o
	}
	return text
}
