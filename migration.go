package walpost

import (
	"errors"
	"fmt"
	"slices"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/outboxtable"
	"github.com/walpost/walpost/replication"
)

// Migrations are the forms of Migration and InboxMigration: one file of goose, and the two files of
// golang-migrate and other tools.
var Migrations = []string{"goose", "up", "down"}

// Migration returns the SQL that makes all outbox tables of cfg, or drops them, for a tool for
// migrations. It asks no database. The schema, the role and the publication are no part of it: a setup
// makes them.
func Migration(cfg Config, form string) (string, error) {
	r, err := prepare(cfg, cfg.ValidateDatabase())
	if err != nil {
		return "", err
	}
	full := replication.FullSetup(*r.source.Config())
	if err := full.Err(); err != nil {
		return "", err
	}
	if len(full.Tables) == 0 {
		return "", fault.Config(errors.New("no table is configured: logical messages need none"), "")
	}
	var tables []*outboxtable.Table
	for _, t := range full.Tables {
		tables = append(tables, &outboxtable.Table{
			Name: t, OrderColumn: cfg.Source.OrderColumn, TimeColumn: cfg.Source.TimeColumn, Partitioned: cfg.SetupPartitioned,
		})
	}
	up, down := outboxtable.Migration("", "", tables...)
	return migration(form, outboxtable.Goose(tables...), up, down)
}

// InboxMigration is Migration for the tables of package inbox.
func InboxMigration(form string) (string, error) {
	return migration(form, inbox.Goose(), inbox.DDL, inbox.DropDDL)
}

// migration returns the text of a form. texts are in the order of Migrations.
func migration(form string, texts ...string) (string, error) {
	if i := slices.Index(Migrations, form); i >= 0 {
		return texts[i], nil
	}
	return "", fault.Config(fmt.Errorf("the form of a migration must be one of %v (got %q)", Migrations, form), "")
}
