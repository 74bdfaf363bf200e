package pg

import (
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/lib/pgname"
)

// A Session is what people are told of the session that something belongs to. What is not known is empty.
type Session struct {
	PID                                int32 // 0 for none, such as after PREPARE TRANSACTION
	User, Application, Database, State string
}

// String continues a sentence that begins with what belongs to the session.
func (s Session) String() (text string) {
	if s.PID != 0 {
		text = fmt.Sprintf(" of pid %d", s.PID)
	}
	switch {
	case s.User != "" && s.Application != "":
		text += fmt.Sprintf(" (%s, %s)", s.User, s.Application)
	case s.User != "" || s.Application != "":
		text += " (" + s.User + s.Application + ")"
	}
	if s.Database != "" {
		text += " in " + s.Database
	}
	if s.State != "" {
		text += ", " + s.State
	}
	return text
}

// EndSQL is the SQL that ends the transaction of a process, "" for no process.
func EndSQL(pid int32) string {
	if pid == 0 {
		return ""
	}
	return fmt.Sprintf("SELECT pg_terminate_backend(%d);", pid)
}

// EndPreparedSQL is the SQL that ends a prepared transaction. It works only in the transaction's database. Whoever coordinates
// the transaction may have decided to commit it.
func EndPreparedSQL(gid, database string) string {
	return fmt.Sprintf("ROLLBACK PREPARED %s; -- in database %s, or COMMIT PREPARED", strings.TrimSpace(pgname.QuoteLiteral(gid)), pgname.QuoteIdent(database))
}
