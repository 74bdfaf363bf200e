package outboxtable

import (
	"fmt"

	"github.com/walpost/walpost/internal/lib/pgname"
)

// Archive makes the archive of t, without defaults, keys and indexes, for a role that is already
// quoted.
func Archive(t, archive pgname.Table, role string) Step {
	return Step{
		"archive table " + archive.String(), "For cleanup.mode: archive. Keep this table out of the publication of walpost.",
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (LIKE %s);\nGRANT USAGE ON SCHEMA %s TO %s;\nGRANT INSERT ON %[1]s TO %[4]s;",
			archive.SQL(), t.SQL(), pgname.QuoteIdent(archive.Schema), role),
	}
}
