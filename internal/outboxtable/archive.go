package outboxtable

import (
	"fmt"

	"github.com/walpost/walpost/internal/pg"
)

// Archive makes the archive of t, without defaults, keys and indexes, for a role that is
// already quoted. An archive of whole partitions belongs to the role, because only the owner may attach
// partitions. column is its partition key.
func Archive(t, archive pg.Table, partitions bool, column, role string) Step {
	like, right := "", "GRANT INSERT ON "+archive.SQL()+" TO "+role
	if partitions {
		like = " INCLUDING GENERATED) PARTITION BY RANGE (" + pg.QuoteIdent(column)
		right = "ALTER TABLE " + archive.SQL() + " OWNER TO " + role
	}
	return Step{
		"archive table " + archive.String(), "For cleanup.mode: archive. Keep this table out of the publication of walpost.",
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (LIKE %s%s);\nGRANT USAGE ON SCHEMA %s TO %s;\n%s;",
			archive.SQL(), t.SQL(), like, pg.QuoteIdent(archive.Schema), role, right),
	}
}
