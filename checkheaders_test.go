package walpost

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/testenv"
)

// A table from before the column headers does not fit a configuration that places it. Both kinds of
// sources go on, and check has the statement that adds it.
func TestCheckPrintsHowToAddTheColumnHeaders(t *testing.T) {
	for _, kind := range []string{KindWAL, KindPoll} {
		pg := testenv.Postgres(t, "")
		dsn := pg.Database(t)
		cfg := DefaultConfig()
		cfg.Source.Kind, cfg.Source.DSN, cfg.Source.Table, cfg.Stdout = kind, conf.Secret(dsn), "public.outbox", io.Discard
		cfg.Source.OrderColumn, cfg.Source.Poll.XIDColumn, cfg.Checkpoint.Store = "seq", "xid", "file"
		cfg.Checkpoint.Path = t.TempDir() + "/checkpoint"
		up, err := Migration(cfg, "up")
		if err != nil {
			t.Fatal(err)
		}
		pg.Exec(t, dsn, up, "ALTER TABLE outbox DROP COLUMN headers")
		cfg.Router.AdditionalPlacement = "headers:headers"
		columns := func() (about []Finding) {
			found, err := Check(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			return slices.DeleteFunc(found, func(f Finding) bool { return f.Name != "columns of public.outbox" })
		}
		const fix = `ALTER TABLE "public"."outbox" ADD COLUMN "headers" jsonb;`
		if about := columns(); len(about) != 1 || about[0].Verdict != Warn || !strings.Contains(about[0].FixText(), fix) {
			t.Errorf("%s: without the column %+v", kind, about)
		}
		pg.Exec(t, dsn, fix)
		if about := columns(); slices.ContainsFunc(about, func(f Finding) bool { return f.Verdict != OK }) {
			t.Errorf("%s: with the column %+v", kind, about)
		}
	}
}
