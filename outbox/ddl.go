package outbox

import "github.com/walpost/walpost/internal/lib/outboxtable"

// DDL returns the SQL that makes the table, and the SQL that drops it. It is the table that walpost
// setup makes, with the type of Options.PayloadType and the columns of Options.Headers. Both texts can be the files of a migration of golang-migrate.
func (o *Outbox) DDL() (up, down string) { return outboxtable.Migration("", "", &o.table) }

// Goose returns DDL as one file of a migration of goose.
func (o *Outbox) Goose() string { return outboxtable.Goose(&o.table) }

// Placement returns the value for router.table.fields.additional.placement in walpost.yaml: the
// type of the event in the header eventType, and the column headers or those of Options.Headers.
func (o *Outbox) Placement() string {
	return outboxtable.Placement(append([]string{"event_type"}, o.opts.Headers...), o.opts.Headers == nil)
}
