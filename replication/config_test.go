package replication

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/fault"
)

func valid() Config {
	cfg := DefaultConfig()
	cfg.DSN, cfg.Tables = "postgres://u:geheim@db:5432/shop", []string{"public.outbox"}
	return cfg
}

// A Config that was not begun with DefaultConfig must not give up each attempt at once.
func TestMakingTheSlotIsBoundedByDefault(t *testing.T) {
	cfg := valid()
	cfg.CreateTimeout = 0
	if got := NewSource(cfg).Config().CreateTimeout; got != DefaultConfig().CreateTimeout {
		t.Error(got)
	}
}

func TestValidateNamesFieldBoundAndValue(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"nothing is wrong", func(*Config) {}, nil},
		{"no DSN", func(c *Config) { c.DSN = "" }, []string{"source.dsn: is required"}},
		{"no table", func(c *Config) { c.Tables = nil }, []string{"source.table: is required"}},
		{"a bad table", func(c *Config) { c.Tables = []string{"a.b.c"} }, []string{`source.table: "a.b.c" is not a table name: it has 3 parts; write schema.table`}},
		{"a table twice", func(c *Config) { c.Tables = []string{"outbox", "Public.Outbox"} }, []string{"source.tables[1]: must be named once (got \"public.outbox\")"}},
		{"deletes", func(c *Config) { c.Publish = []string{"insert", "delete"} }, []string{`source.publish: must be insert, or insert and update (got "insert, delete")`}},
		{"no inserts", func(c *Config) { c.Publish = []string{"update"} }, []string{`source.publish: must be insert, or insert and update (got "update")`}},
		{"inserts twice", func(c *Config) { c.Publish = []string{"insert", "insert"} }, []string{`(got "insert, insert")`}},
		{"no publication", func(c *Config) { c.Publication = "" }, []string{"source.publication: a name is empty"}},
		{"everything at once", func(c *Config) { *c = Config{} }, []string{"source.dsn", "source.table", "source.publication"}},
		{"a scheme nobody knows", func(c *Config) { c.DSN = "mysql://u:geheim@db/shop" }, []string{"source.dsn: must be a libpq URI or keyword string"}},
		{"a blank in a password", func(c *Config) { c.DSN = "password=top geheim host=db" }, []string{"source.dsn: must be a libpq URI or keyword string"}},
		{"a colon in a password", func(c *Config) { c.DSN = "postgres://a@u:sec:geheim@h" }, []string{"source.dsn: must be a libpq URI or keyword string"}},
		{"a missing root certificate", func(c *Config) { c.DSN += "?sslmode=verify-full&sslrootcert=/nowhere/ca.pem" }, []string{"source.dsn: configure TLS (unable to read CA file: open /nowhere/ca.pem"}},
		{"another DateStyle", func(c *Config) { c.DSN += "?datestyle=German" }, []string{`source.dsn: DateStyle must be ISO on walpost's connections (got "German" from the DSN or the environment)`}},
		{"another TimeZone, in another case", func(c *Config) { c.DSN += "?TimeZone=Europe/Berlin" }, []string{"source.dsn: TimeZone must be UTC"}},
		{"two other settings", func(c *Config) { c.DSN += "?datestyle=German&TimeZone=Europe/Berlin" }, []string{"source.dsn: DateStyle must be", "source.dsn: TimeZone must be"}},
		{"another encoding", func(c *Config) { c.DSN += "?client_encoding=LATIN1" }, []string{"source.dsn: client_encoding must be UTF8"}},
		{"another setting in options", func(c *Config) { c.DSN += "?options=-c%20bytea_output%3Descape" }, []string{`source.dsn: bytea_output must be hex on walpost's connections (got "escape" from options`}},
		{"another setting in long options", func(c *Config) { c.DSN += "?options=--extra-float-digits%3D0" }, []string{"source.dsn: extra_float_digits must be 3"}},
		{"options that end too early", func(c *Config) { c.DSN += "?options=-c" }, []string{"source.dsn: options: -c is followed by nothing"}},
		{"the same settings in other words", func(c *Config) {
			c.DSN += "?client_encoding=utf-8&datestyle=ISO,DMY&timezone=utc&options=-cextra_float_digits%3D1%20-c%20IntervalStyle%3Dpostgres%20-c%20work_mem%3D8MB"
		}, nil},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			cfg := valid()
			c.change(&cfg)
			got := cfg.Validate()
			if len(got) != len(c.want) {
				t.Fatalf("got %v, want %q", got, c.want)
			}
			for i, p := range got {
				if !strings.Contains(p.String(), c.want[i]) {
					t.Errorf("got %q, want %q", p, c.want[i])
				}
				if strings.Contains(p.String(), "geheim") {
					t.Errorf("the password is in %q", p)
				}
			}
		})
	}
}

func TestEnvironmentThatAsksForAnotherFormatIsRefused(t *testing.T) {
	for name, value := range map[string]string{"PGTZ": "Asia/Kolkata", "PGDATESTYLE": "SQL, DMY", "PGOPTIONS": "-c intervalstyle=iso_8601"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			cfg := valid()
			if errs := cfg.Validate(); len(errs) != 1 || !fault.Misconfigured(errs) {
				t.Errorf("got %v", errs)
			}
		})
	}
}
