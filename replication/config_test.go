package replication

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

func valid() Config {
	return Config{DSN: "postgres://u:geheim@db:5432/shop", Tables: []string{"public.outbox"}, Slot: "walpost", Publication: "walpost"}
}

func TestValidateNamesFieldBoundAndValue(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"nothing is wrong", func(*Config) {}, nil},
		{"no DSN", func(c *Config) { c.DSN = "" }, []string{"source.dsn: must be set"}},
		{"no table", func(c *Config) { c.Tables = nil }, []string{"source.table: must be set"}},
		{"a bad table", func(c *Config) { c.Tables = []string{"a.b.c"} }, []string{`source.table: "a.b.c" is not a table name: it has 3 parts; write schema.table`}},
		{"a table twice", func(c *Config) { c.Tables = []string{"outbox", "Public.Outbox"} }, []string{"source.tables[1]: public.outbox is named twice"}},
		{"a bad slot", func(c *Config) { c.Slot = "Wal-post" }, []string{`source.slot: must be 1 to 63 of a-z, 0-9 and _ (got "Wal-post")`}},
		{"deletes", func(c *Config) { c.Publish = []string{"insert", "delete"} }, []string{`source.publish: must be insert, or insert and update (got "insert, delete")`}},
		{"no inserts", func(c *Config) { c.Publish = []string{"update"} }, []string{`source.publish: must hold insert (got "update")`}},
		{"inserts twice", func(c *Config) { c.Publish = []string{"insert", "insert"} }, []string{`(got "insert, insert")`}},
		{"a long slot", func(c *Config) { c.Slot = strings.Repeat("s", 64) }, []string{"source.slot: must be 1 to 63 of a-z, 0-9 and _"}},
		{"no publication", func(c *Config) { c.Publication = "" }, []string{"source.publication: a name is empty"}},
		{"everything at once", func(c *Config) { *c = Config{} }, []string{"source.dsn", "source.table", "source.slot", "source.publication"}},
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

func TestConnectionIsPinnedWhateverTheDSNSays(t *testing.T) {
	t.Setenv("PGOPTIONS", "")
	cfg := valid()
	cfg.DSN += "?TIMEZONE=UTC&replication=database&application_name=mine"
	cfg.Password = "other"
	cc, err := cfg.connConfig()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pins {
		if cc.RuntimeParams[p.name] != p.value {
			t.Errorf("%s is %q", p.name, cc.RuntimeParams[p.name])
		}
	}
	if _, twice := cc.RuntimeParams["TIMEZONE"]; twice || cc.RuntimeParams["replication"] != "" {
		t.Errorf("left over: %v", cc.RuntimeParams)
	}
	if cc.RuntimeParams["application_name"] != "mine" || cc.Password != "other" || cc.ConnectTimeout != defaultConnectTimeout || cc.ValidateConnect == nil {
		t.Errorf("%v %s %v", cc.RuntimeParams, cc.Password, cc.ConnectTimeout)
	}
	cfg.DSN += "&target_session_attrs=any&connect_timeout=3"
	cfg.ApplicationName = "shop relay"
	if cc, err = cfg.connConfig(); err != nil || cc.ValidateConnect != nil || cc.ConnectTimeout.Seconds() != 3 || cc.RuntimeParams["application_name"] != "shop relay" {
		t.Errorf("%v %+v", err, cc)
	}
	for dsn, want := range map[string]string{"postgres://u@h/shop": "shop", "host=h user=u dbname='my shop'": "my shop", "postgres://u@h": "u"} {
		cfg.DSN = dsn
		if got, err := cfg.Database(); err != nil || got != want {
			t.Errorf("database of %s: %q %v", dsn, got, err)
		}
	}
}

func TestTableNamesAreReadAsSQLDoes(t *testing.T) {
	for _, c := range []struct{ in, schema, name, text string }{
		{"public.outbox", "public", "outbox", "public.outbox"},
		{"outbox", "public", "outbox", "public.outbox"},
		{"Shop.OutBox", "shop", "outbox", "shop.outbox"},
		{`"Shop"."outBox"`, "Shop", "outBox", `"Shop"."outBox"`},
		{`shop."out.box"`, "shop", "out.box", `shop."out.box"`},
		{`"say ""hi"""`, "public", `say "hi"`, `public."say ""hi"""`},
		{"größe.tisch_1$", "größe", "tisch_1$", "größe.tisch_1$"},
		{"ÄB.c", "Äb", "c", "Äb.c"}, // only ASCII is folded
	} {
		got, err := ParseTable(c.in)
		if err != nil || got.Schema != c.schema || got.Name != c.name || got.String() != c.text {
			t.Errorf("%s: %+v %s %v", c.in, got, got, err)
			continue
		}
		if again, err := ParseTable(got.String()); err != nil || again != got {
			t.Errorf("%s does not come back: %+v %v", got, again, err)
		}
	}
	for in, want := range map[string]string{
		"": "a name is empty", ".": "a name is empty", "a.": "a name is empty", ".b": "a name is empty", `""`: "a name is empty",
		"a.b.c": "3 parts", `"a`: "a quote is not closed", "my-table": `must be in double quotes`, "1a": "must be in double quotes",
		"a b": "must be in double quotes", `"a"b`: "where a dot or the end was expected",
		strings.Repeat("x", 64): "longer than 63 bytes", "\"\xff\"": "not valid UTF-8", "a;drop": "must be in double quotes", "$a": "must be in double quotes",
	} {
		if got, err := ParseTable(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v %v, want %q", in, got, err, want)
		}
	}
	if got := quoteLiteral(`it's \ this`); got != ` E'it''s \\ this'` {
		t.Errorf("literal: %s", got)
	}
}

func TestTimelineHistoryIsReadWithinBounds(t *testing.T) {
	forks, err := parseHistory([]byte("1\t0/3000148\tno recovery target specified\n\n# a comment\n2\t16/B374D848\tbefore 2026-01-02 03:04:05+00\n"), 3)
	if err != nil || len(forks) != 2 || forks[0] != (cdc.Fork{Timeline: 1, End: 0x3000148}) || forks[1] != (cdc.Fork{Timeline: 2, End: 0x16B374D848}) {
		t.Errorf("%v %v", forks, err)
	}
	for in, want := range map[string]string{
		"": "is empty", "# only words\n": "is empty", "1": "has no position", "x\t0/1": "has no timeline", "1\t01": "line 1 of the history",
		"1\tG/1": "line 1", "2\t0/1\n1\t0/2": "out of order", "1\t0/1\n1\t0/2": "out of order", "3\t0/1": "out of order", "0\t0/1": "out of order",
		"99999999999\t0/1": "has no timeline", "1\t100000000/0": "line 1", "-1\t0/1": "has no timeline",
		strings.Repeat("\x00", 40): "has no position",
	} {
		if forks, err := parseHistory([]byte(in), 3); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v %v, want %q", in, forks, err, want)
		}
	}
}

func FuzzTimelineHistory(f *testing.F) {
	f.Add([]byte("1\t0/3000148\tno recovery target specified\n"), uint32(2))
	f.Fuzz(func(t *testing.T, content []byte, current uint32) {
		forks, err := parseHistory(content, current)
		for i, fork := range forks {
			if fork.Timeline >= current || i > 0 && forks[i-1].Timeline >= fork.Timeline {
				t.Errorf("%v", forks)
			}
		}
		if (err == nil) != (len(forks) > 0) {
			t.Errorf("%v %v", forks, err)
		}
	})
}

func TestConnectErrorsSayWhetherTryingAgainCanHelp(t *testing.T) {
	pg := func(code, message string) error {
		return fmt.Errorf("server error: %w", &pgconn.PgError{Severity: "FATAL", Code: code, Message: message})
	}
	cfg := valid()
	cc, err := cfg.connConfig()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err           error
		behaves, hint string
	}{
		{errors.New("connection refused"), "retry", ""},
		{pg("57P03", "the database system is starting up"), "retry", ""},
		{pg("53300", "sorry, too many clients already"), "retry", ""},
		{pg("28P01", "password authentication failed"), "fail", "source.password"},
		{pg("28000", `no pg_hba.conf entry for host "10.0.0.1"`), "fail", `pg_hba.conf`},
		{pg("28000", `role "u" does not exist`), "fail", `ALTER ROLE "u" LOGIN`},
		{pg("3D000", `database "shop" does not exist`), "fail", "source.dsn"},
		{pg("42501", `permission denied for database "shop"`), "fail", `GRANT CONNECT ON DATABASE "shop" TO "u";`},
		{pg("08P01", "unsupported startup parameter: extra_float_digits"), "fail", "pooler"},
		{pgconn.ErrStandbyConnection, "retry", "target_session_attrs=any"},
		{errors.Join(errors.New("connection refused"), pgconn.ErrStandbyConnection), "retry", "target_session_attrs=any"},
		{errors.Join(errors.New("connection refused"), pg("28P01", "no")), "retry", ""},
		{errors.Join(pg("28P01", "no"), pg("28P01", "no")), "fail", "source.password"},
	} {
		err := classifyConnect(fmt.Errorf("connect: %w", c.err), cc)
		if behaviourOf(err) != c.behaves || !strings.Contains(fault.Hint(err), c.hint) {
			t.Errorf("%v: %s, hint %q; want %s %q", c.err, behaviourOf(err), fault.Hint(err), c.behaves, c.hint)
		}
	}
	cc.RuntimeParams["replication"] = "database"
	err = classifyConnect(pg("42501", "permission denied to start WAL sender"), cc)
	if behaviourOf(err) != "fail" || !strings.Contains(fault.Hint(err), `ALTER ROLE "u" REPLICATION;`) {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
}
