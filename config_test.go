package walpost

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/slot"
)

// usable is a Config with which New succeeds.
func usable() Config {
	cfg := DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table, cfg.Kafka.Brokers = "postgres://walpost@db:5432/shop", "outbox", []string{"kafka:9092"}
	return cfg
}

func TestSecretFilesLoseTheLineEndOnly(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secret")
	for text, want := range map[string]string{"a b\n": "a b", "a\r\n": "a", " a \n\n": " a ", "a": "a"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := usable()
		cfg.Source.PasswordFile, cfg.Kafka.SASL.SessionTokenFile = name, name
		source := cfg.replication()
		to, err := source.Connection().Config()
		if err != nil {
			t.Fatal(err)
		}
		if to.Password != want {
			t.Errorf("%q is the password %q, want %q", text, to.Password, want)
		}
		if got, err := cfg.Kafka.SASL.SessionToken.Or(cfg.Kafka.SASL.SessionTokenFile); got != want || err != nil {
			t.Errorf("%q is the session token %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "\n", strings.Repeat("a", 1<<20+1)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := usable()
		cfg.Source.DSN, cfg.Source.DSNFile = "", name
		if found := cfg.Validate(); len(found) != 1 || found[0].Field != "source.dsn_file" {
			t.Errorf("a file of %d bytes: %v", len(text), found)
		}
		for field, change := range map[string]func(s *kafka.SASL){
			"kafka.sasl.password_file": func(s *kafka.SASL) { s.Mechanism, s.Username, s.PasswordFile = "PLAIN", "u", name },
			"kafka.sasl.token_file":    func(s *kafka.SASL) { s.Mechanism, s.TokenFile = "OAUTHBEARER", name },
			"kafka.sasl.client_secret_file": func(s *kafka.SASL) {
				*s = kafka.SASL{Mechanism: "OAUTHBEARER", TokenEndpointURL: "https://login/token", ClientID: "i", ClientSecretFile: name}
			},
			"kafka.sasl.secret_key_file":    func(s *kafka.SASL) { s.Mechanism, s.AccessKey, s.SecretKeyFile = "AWS_MSK_IAM", "a", name },
			"kafka.sasl.session_token_file": func(s *kafka.SASL) { s.Mechanism, s.SessionTokenFile = "AWS_MSK_IAM", name },
		} {
			cfg := usable()
			change(&cfg.Kafka.SASL)
			if found := cfg.Validate(); len(found) != 1 || found[0].Field != field {
				t.Errorf("%s of %d bytes: %v", field, len(text), found)
			}
		}
	}
}

func TestNewSaysEverythingAndIsMisconfigured(t *testing.T) {
	if _, err := New(usable()); err != nil {
		t.Fatal(err)
	}
	cfg := usable()
	cfg.Delivery.Window.Events, cfg.Source.Slot = 0, "A"
	_, err := New(cfg)
	if err == nil || !fault.Misconfigured(err) || !strings.Contains(err.Error(), "delivery.window.events: must be at least 1 (got 0)") ||
		!strings.Contains(err.Error(), "source.slot: ") {
		t.Errorf("got %v", err)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("the zero Config was accepted")
	}
}

func TestWithoutALoggerTheLogGoesToTheDefault(t *testing.T) {
	r, err := New(usable())
	if err != nil {
		t.Fatal(err)
	}
	for what, got := range map[string]*slog.Logger{"relay": r.loopConfig(r.snapshot(), 0).Logger, "source": r.source.Config().Logger, "poll": r.polling().Logger, "sink": r.cfg.sink().Logger} {
		if got != slog.Default() {
			t.Errorf("%s: %v", what, got)
		}
	}
}

func TestNameIsDatabaseAndSlot(t *testing.T) {
	r, err := New(usable())
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Status(); s.Name != "shop.walpost" || s.Ready || s.Slot.Severity != slot.Unknown || s.Breaker != nil {
		t.Errorf("before Run: %+v", s)
	}
}

func TestWhatNeedsTheDatabaseOnlyNeedsNoBrokers(t *testing.T) {
	cfg := usable()
	cfg.Kafka.Brokers = nil
	if found := cfg.ValidateDatabase(); found != nil {
		t.Errorf("without brokers: %v", found)
	}
	if found := cfg.Validate(); len(found) != 1 || found[0].Field != "kafka.brokers" || found[0].Rule != conf.Required {
		t.Errorf("for Run, without brokers: %v", found)
	}
	cfg.Kafka.Brokers, cfg.Kafka.Compression = []string{"kafka"}, "rar"
	if found := cfg.ValidateDatabase(); len(found) != 2 {
		t.Errorf("wrong values of the brokers and the compression: %v", found)
	}
}

func TestADatabaseWithASlashNeedsAName(t *testing.T) {
	cfg := usable()
	cfg.Source.DSN = "postgres://walpost@db:5432/a%2Fb"
	if _, err := New(cfg); !fault.Misconfigured(err) || !strings.Contains(err.Error(), "name: is required") {
		t.Errorf("without a name: %v", err)
	}
	cfg.Name = "a.b"
	if _, err := New(cfg); err != nil {
		t.Error(err)
	}
}

// Each key that polling cannot serve is refused alone, with the reason.
func TestPollingRefusesWhatOnlyTheWALHas(t *testing.T) {
	polls := func() Config {
		cfg := usable()
		cfg.Source.Kind, cfg.Source.OrderColumn, cfg.Source.Poll.XIDColumn = KindPoll, "seq", "xid"
		return cfg
	}
	if cfg := polls(); len(cfg.Validate()) > 0 {
		t.Fatalf("refused: %v", cfg.Validate())
	}
	for field, key := range map[string]struct {
		set func(*Config)
		why string
	}{
		"source.slot":         {func(c *Config) { c.Source.Slot = "other" }, "neither slot nor publication"},
		"source.publication":  {func(c *Config) { c.Source.Publication = "other" }, "neither slot nor publication"},
		"source.failover":     {func(c *Config) { c.Source.Failover = true }, "neither slot nor publication"},
		"source.create":       {func(c *Config) { c.Source.Create = false }, "neither slot nor publication"},
		"source.publish":      {func(c *Config) { c.Source.Publish = []string{"insert", "delete"} }, "new rows only"},
		"source.messages":     {func(c *Config) { c.Source.Messages.Prefix = "orders" }, "messages are only in the WAL"},
		"source.order_column": {func(c *Config) { c.Source.OrderColumn = "" }, "the order of the rows of a key"},
		"source.tables":       {func(c *Config) { c.Source.Table, c.Source.Tables = "", []string{"a", "b"} }, "one relay for each table"},
		"source.table":        {func(c *Config) { c.Source.Table = "" }, "with source.kind: poll"},

		"source.poll.xid_column": {func(c *Config) { c.Source.Poll.XIDColumn = "" }, "delete, which needs no such column"},
	} {
		cfg := polls()
		key.set(&cfg)
		found := cfg.Validate()
		if !slices.ContainsFunc(found, func(p Problem) bool { return p.Field == field && strings.Contains(p.Text(), key.why) }) {
			t.Errorf("%s: %v", field, found)
		}
	}
}
