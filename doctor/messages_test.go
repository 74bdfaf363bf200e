package doctor

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/testenv"
)

// TestWhoMayWriteMessagesIsSaid runs the statements of the fix, which leave the right to one role.
func TestWhoMayWriteMessagesIsSaid(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg)
		w.cfg.Tables, w.cfg.Messages.Prefix = nil, "outbox"
		find := func() Finding {
			t.Helper()
			for _, f := range w.examine() {
				if f.Name == "source.messages" {
					return f
				}
			}
			t.Fatal("nothing is said of messages")
			return Finding{}
		}
		found := find()
		if found.Verdict != Warn || !strings.Contains(found.Why, `may write messages, and walpost publishes messages with the prefix "outbox"`) {
			t.Fatalf("%+v", found)
		}
		for _, step := range found.Fix {
			if sql, ok := step.(fix.SQL); ok {
				w.exec(strings.ReplaceAll(string(sql), "<the application's role>", "CURRENT_USER"))
			}
		}
		if found := find(); found.Verdict != OK || !strings.Contains(found.Why, "so are its undelivered messages") {
			t.Errorf("after the fix: %+v", found)
		}
	})
}

func TestMessagesOfADatabaseWithAnotherEncoding(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""))
	w.cfg.Tables, w.cfg.Messages.Prefix = nil, "outbox"
	w.exec("CREATE DATABASE " + "latin_" + w.cfg.Slot + " ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	db, err := w.cfg.Database()
	if err != nil {
		t.Fatal(err)
	}
	w.cfg.DSN = w.cfg.DSN[:strings.Index(string(w.cfg.DSN), db)] + "latin_" + w.cfg.DSN[strings.Index(string(w.cfg.DSN), db):]
	for _, f := range w.examine() {
		if f.Name == "source.messages encoding" && f.Verdict == Warn && strings.Contains(f.Why, "LATIN1") {
			return
		}
	}
	t.Error("nothing is said of the encoding")
}
