package pg

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs that decide something: https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	StateUndefinedObject  = "42704"
	StateNotInState       = "55000" // object_not_in_prerequisite_state: a lost slot, among others
	StateInUse            = "55006"
	StateNoRight          = "42501"
	StateAdminShutdown    = "57P01"
	StateCannotConnectNow = "57P03"
	stateBadEncoding      = "22021" // character_not_in_repertoire: a text that is not valid in the client's encoding
	stateNoConversion     = "22P05" // untranslatable_character
	StateDuplicate        = "42710"
	StateNotUnique        = "23505" // made by another session between the look for it and the insert into the catalog
	StateCheck            = "23514" // a row breaks a constraint, also that of a default partition
	StateCancelled        = "57014"
	StateLimitReached     = "53400" // all replication slots are in use
)

// NotUTF8 reports whether the server could not give a text as UTF-8. In a database with the encoding SQL_ASCII a text may be any bytes.
func NotUTF8(code string) bool { return code == stateBadEncoding || code == stateNoConversion }

// RepairText says how to repair such a text.
const RepairText = "A text value cannot be converted to UTF-8. In a database with the encoding SQL_ASCII, a text value may contain any bytes. Repair the row in the table (UPDATE)."

// SQLState is the SQLSTATE of the server's error in err's chain, or "".
func SQLState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}
