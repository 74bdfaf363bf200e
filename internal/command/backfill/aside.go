package backfill

import (
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router"
)

// An Aside reports whether an event is kept elsewhere, as a dead letter or among the parked ones, so that its row is left out. unique says that
// no other table of any database has the id. The nil Aside has none.
type Aside func(table, id string, unique bool) bool

// has reports whether it has the event of a row. An id tells that only if it is the primary key.
func (a Aside) has(rel *cdc.Relation, columns func(*cdc.Relation) router.Columns, id string) bool {
	if a == nil || id == "" {
		return false
	}
	key, uuid := idIsKey(rel, columns(rel).ID)
	return key && a(rel.String(), id, uuid)
}

// idIsKey reports whether the column of the event id is the primary key, and whether it is a uuid.
func idIsKey(rel *cdc.Relation, column string) (key, uuid bool) {
	for _, c := range rel.Columns {
		if (c.KeyPosition > 0) != (c.Name == column) {
			return false, false
		}
		uuid = uuid || c.Name == column && c.TypeName == "uuid"
	}
	return rel.Index(column) >= 0, uuid
}
