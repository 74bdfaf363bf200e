package kafka

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The file is read again for every login: one that has become empty since the start is an error and no empty password.
func TestAnEmptySecretIsRefusedAtALogin(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("right\n")
	cfg := Config{Brokers: []string{"k:9092"}, SASL: SASL{Mechanism: "PLAIN", Username: "u", PasswordFile: name}}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	login := func() ([]byte, error) {
		_, first, err := cfg.SASL.mechanism().Authenticate(t.Context(), "k:9092")
		return first, err
	}
	if first, err := login(); err != nil || string(first) != "\x00u\x00right" {
		t.Errorf("login: %q %v", first, err)
	}
	write("\n")
	if first, err := login(); err == nil || !strings.Contains(err.Error(), "must not be empty") {
		t.Errorf("login with an empty file: %q %v", first, err)
	}
}
