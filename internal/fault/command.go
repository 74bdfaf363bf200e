package fault

import (
	"strings"
	"sync/atomic"
)

// options are those of this program: all, and those without the DSN.
var options atomic.Pointer[[2]string]

// SetOptions sets the options of this program, as words of a shell: --config walpost.yaml. Hints
// repeat them in the commands that they advise, so that a reader can paste a command. withoutDSN
// are those for another role. A program that uses walpost as a library has no such options.
func SetOptions(words, withoutDSN string) { options.Store(&[2]string{words, withoutDSN}) }

// Command is a walpost command for a hint, with the options of this program. A hint puts a space or
// its own end behind the command, so that it can be pasted.
func Command(words ...string) string {
	text := "walpost " + strings.Join(words, " ")
	if o := options.Load(); o != nil && o[0] != "" {
		text += " " + o[0]
	}
	return text
}

// SetupCommand is the walpost command with which an administrator makes what a role lacks.
func SetupCommand(role string) string {
	text := `walpost setup --role=` + role + ` --apply --dsn "<DSN of an administrator>"`
	if o := options.Load(); o != nil && o[1] != "" {
		text += " " + o[1]
	}
	return text
}

// An Advice is a command of a hint, which a reader may copy.
type Advice struct {
	Command string `json:"command"`
	GivesUp string `json:"gives_up"` // what the command gives up for good; "" for nothing
}

// RecoverCommands are the commands that Recover names and that may be offered: without a table, none.
func RecoverCommands(tableless bool) []Advice {
	if tableless {
		return nil
	}
	return []Advice{{Command: Command("recover")}}
}

// Recover is the advice if the slot is missing or lost. Without a table, walpost recover refuses.
func Recover(tableless bool) string {
	if tableless {
		return "The messages that only the slot held cannot be published again, because messages are in no table. Run " +
			Command("run") + " to see the gap, and how to continue without these messages."
	}
	return "Run " + Command("recover") + " to publish the missing events from the table. " +
		"It shows the gap first, and asks before it replaces the slot and before it publishes."
}
