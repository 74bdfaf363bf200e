package walpost

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/sink"
)

// Where the store cannot be read, skip advises what helps with this store, and with this fault of it.
func TestSkipAdvisesWhatHelpsWithTheStore(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, cfg *Config)
		hint    string
		person  bool
	}{
		"the file is held": {func(t *testing.T, cfg *Config) {
			held := sink.NewFileStore(cfg.Checkpoint.Path)
			if _, err := held.Load(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = held.Close() })
		}, "also while it is halted", false},
		"the file is damaged": {func(t *testing.T, cfg *Config) {
			if err := os.WriteFile(cfg.Checkpoint.Path, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "restore the file", true},
		"Kafka is unreachable": {func(_ *testing.T, cfg *Config) { cfg.Checkpoint.Store, cfg.Checkpoint.Path = "kafka", "" }, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Source.DSN, cfg.Source.Table = "postgres://h/shop", "public.outbox"
			cfg.Kafka.Brokers = []string{"127.0.0.1:1"}
			cfg.Checkpoint.Store, cfg.Checkpoint.Path = "file", filepath.Join(t.TempDir(), "position")
			c.prepare(t, &cfg)
			_, err := Skip(t.Context(), cfg, "0-1-1-00000000")
			if hint := fault.Hint(err); err == nil || fault.NeedsPerson(err) != c.person || !strings.Contains(hint, c.hint) || c.hint == "" && hint != "" {
				t.Errorf("%v, hint %q", err, hint)
			}
		})
	}
}
