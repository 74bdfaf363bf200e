package replication_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/walpost/walpost/replication"
)

// A password that was changed in its file is in the next connection, without a restart.
func TestThePasswordFileIsReadForEveryConnection(t *testing.T) {
	name := filepath.Join(t.TempDir(), "password")
	cfg := replication.DefaultConfig()
	cfg.DSN, cfg.PasswordFile, cfg.Table = "postgres://walpost@db/shop", name, "public.outbox"
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("old\n")
	if found := cfg.Validate(); found != nil {
		t.Fatal(found)
	}
	cfg.ReadSecrets()
	db := cfg.Connection()
	for _, password := range []string{"old", "new"} {
		put(password + "\n")
		if cc, err := db.Config(); err != nil || cc.Password != password {
			t.Errorf("the connection does not have the password %s: %v", password, err)
		}
	}
	// A file that is away while it is replaced is an error that a retry helps.
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	_, err := db.Config()
	if wrong, ok := err.(interface{ Misconfigured() bool }); err == nil || ok && wrong.Misconfigured() {
		t.Errorf("without the file: %v", err)
	}
}
