package walpost

import (
	"os"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// The up file makes what setup finds complete, the down file leaves nothing, and both run again.
func TestTheMigrationsMakeTheTablesOfSetup(t *testing.T) {
	const tables = "SELECT coalesce(string_agg(relname, ' ' ORDER BY relname), '') FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition"
	for _, version := range []string{"14", "18"} {
		for name, partitioned := range map[string]bool{"plain": false, "partitioned": true, "inbox": false, "claim": true} {
			t.Run(version+" "+name, func(t *testing.T) {
				t.Parallel()
				pg := testenv.Postgres(t, version)
				dsn := pg.Database(t)
				cfg := DefaultConfig()
				cfg.Source.DSN, cfg.Source.Tables, cfg.SetupPartitioned = conf.Secret(dsn), []string{"public.outbox", "public.mail"}, partitioned
				cfg.Source.OrderColumn, cfg.Source.TimeColumn = "seq", "written_at"
				if name == "claim" {
					cfg.Source.Kind, cfg.Source.Tables, cfg.Source.Poll.Strategy, cfg.Source.Poll.XIDColumn = KindPoll, []string{"public.outbox"}, "claim", "xid"
				}
				form := func(form string) string {
					t.Helper()
					text, err := Migration(cfg, form)
					if name == "inbox" {
						text, err = InboxMigration(form, "public", 0)
					}
					if err != nil {
						t.Fatal(err)
					}
					return text
				}
				up, down, found := strings.Cut(form("goose"), "\n-- +goose Down\n")
				if !found || !strings.HasPrefix(up, "-- +goose Up\n") || strings.Count(up, "StatementBegin\n") != strings.Count(up, "StatementEnd\n") {
					t.Fatalf("goose: %s", up)
				}
				for _, run := range [][2]string{{form("up"), form("down")}, {up, down}, {form("up"), form("down")}} {
					pg.Exec(t, dsn, run[0])
					want := "mail outbox"
					switch name {
					case "inbox":
						want = "inbox_generations inbox_messages inbox_processed inbox_retention"
					case "claim":
						want = "outbox"
						fallthrough
					default:
						sql, why, err := SetupSQL(t.Context(), cfg)
						if why != nil || err != nil || strings.Contains(sql, "CREATE TABLE") || name == "claim" && sql != "-- Everything is there.\n" {
							t.Errorf("setup misses %s, %v, %v", sql, why, err)
						}
					}
					if got := pg.Value(t, dsn, tables); got != want {
						t.Errorf("tables %q, want %q", got, want)
					}
					pg.Exec(t, dsn, run[1])
					if got := pg.Value(t, dsn, tables); got != "" {
						t.Errorf("left %q", got)
					}
				}
			})
		}
	}
}

func TestAMigrationNeedsATableAndAForm(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table = "postgres://postgres@127.0.0.1:1/x", "public.outbox"
	if text, err := Migration(cfg, "golang-migrate"); err == nil || !strings.Contains(err.Error(), "[goose up down]") {
		t.Errorf("%s, %v", text, err)
	}
	misfit := cfg
	misfit.Router.EventKey = "key"
	if text, err := Migration(misfit, "up"); err == nil || !strings.Contains(err.Error(), "does not fit") {
		t.Errorf("%s, %v", text, err)
	}
	cfg.Source.Table, cfg.Source.Messages.Prefix = "", "outbox"
	if text, err := Migration(cfg, "up"); err == nil || !strings.Contains(err.Error(), "no table") {
		t.Errorf("%s, %v", text, err)
	}
	if text, err := InboxMigration("", "", 0); err == nil || text != "" {
		t.Errorf("%s, %v", text, err)
	}
	for _, from := range []int{-1, 2} {
		if text, err := InboxMigration("up", "", from); err == nil || text != "" || !strings.Contains(err.Error(), "must be 0 to 1 (got") {
			t.Errorf("%s, %v", text, err)
		}
	}
}
