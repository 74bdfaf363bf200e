package pg

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

func valid() Database { return Database{DSN: "postgres://u:geheim@db:5432/shop"} }

func TestConnectionIsPinnedWhateverTheDSNSays(t *testing.T) {
	t.Setenv("PGOPTIONS", "")
	cfg := valid()
	cfg.DSN += "?TIMEZONE=UTC&replication=database&application_name=mine"
	cfg.Password = "other"
	cc, err := cfg.Config()
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
	if cc, err = cfg.Config(); err != nil || cc.ValidateConnect != nil || cc.ConnectTimeout.Seconds() != 3 || cc.RuntimeParams["application_name"] != "shop relay" {
		t.Errorf("%v %+v", err, cc)
	}
	for dsn, want := range map[string]string{"postgres://u@h/shop": "shop", "host=h user=u dbname='my shop'": "my shop", "postgres://u@h": "u"} {
		cfg.DSN = dsn
		if got, err := cfg.Name(); err != nil || got != want {
			t.Errorf("database of %s: %q %v", dsn, got, err)
		}
	}
}

func TestConnectErrorsSayWhetherTryingAgainCanHelp(t *testing.T) {
	refused := func(code, message string) error {
		return fmt.Errorf("server error: %w", &pgconn.PgError{Severity: "FATAL", Code: code, Message: message})
	}
	cfg := valid()
	cc, err := cfg.Config()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err           error
		behaves, hint string
	}{
		{errors.New("connection refused"), "retry", ""},
		{refused("57P03", "the database system is starting up"), "retry", ""},
		{refused("53300", "sorry, too many clients already"), "retry", ""},
		{refused("28P01", "password authentication failed"), "fail", "source.password"},
		{refused("28000", `no pg_hba.conf entry for host "10.0.0.1"`), "fail", "to pg_hba.conf, above"},
		{refused("28000", "kein pg_hba.conf-Eintrag"), "fail", "to pg_hba.conf, above"},
		{refused("28000", `role "u" does not exist`), "fail", `walpost setup --role=u --apply`},
		{refused("3D000", `database "shop" does not exist`), "fail", "source.dsn"},
		{refused("42501", `permission denied for database "shop"`), "fail", `GRANT CONNECT ON DATABASE "shop" TO "u";`},
		{refused("08P01", "unsupported startup parameter: extra_float_digits"), "fail", "pooler"},
		{pgconn.ErrStandbyConnection, "retry", "must reach a primary. To read from a standby (Postgres 16 and newer), add target_session_attrs=any"},
		{pgconn.ErrPrimaryConnection, "retry", "must reach a standby"},
		{errors.Join(errors.New("connection refused"), pgconn.ErrStandbyConnection), "retry", "target_session_attrs=any"},
		{errors.Join(errors.New("connection refused"), refused("28P01", "no")), "retry", ""},
		{errors.Join(refused("28P01", "no"), refused("28P01", "no")), "fail", "source.password"},
	} {
		err := classifyConnect(fmt.Errorf("connect: %w", c.err), cc, false)
		if behaviour(err) != c.behaves || !strings.Contains(fault.Hint(err), c.hint) {
			t.Errorf("%v: %s, hint %q; want %s %q", c.err, behaviour(err), fault.Hint(err), c.behaves, c.hint)
		}
	}
	cc.RuntimeParams["replication"] = "database"
	err = classifyConnect(refused("42501", "permission denied to start WAL sender"), cc, false)
	if behaviour(err) != "fail" || !strings.Contains(fault.Hint(err), `ALTER ROLE "u" REPLICATION;`) {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
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

// An administrator who sets up another role is not told to set up the administrator's role.
func TestARefusedLoginIsToldOnceAndToTheRightRole(t *testing.T) {
	pg := testenv.Postgres(t, "")
	dsn := strings.Replace(pg.DSN("postgres"), "postgres@", "absent@", 1)
	for _, mode := range []string{"disable", "prefer", "allow"} {
		for _, administrator := range []bool{false, true} {
			db := Database{DSN: strings.Replace(dsn, "sslmode=disable", "sslmode="+mode, 1), Administrator: administrator}
			_, err := db.ConnectSQL(t.Context())
			text, hint := fmt.Sprint(err), fault.Hint(err)
			if strings.Count(text, "127.0.0.1:") != 1 || strings.Contains(text, "TLS") || !strings.Contains(text, `connect as "absent" to database "postgres": `) {
				t.Errorf("sslmode=%s: %s", mode, text)
			}
			if !strings.HasPrefix(hint, `Check that role "absent" exists and may log in.`) || strings.Contains(hint, "setup --role=absent") == administrator {
				t.Errorf("sslmode=%s, administrator %t: %s", mode, administrator, hint)
			}
		}
	}
	_, err := Database{DSN: "postgres://u@127.0.0.1:1/shop"}.ConnectSQL(t.Context())
	if strings.Count(fmt.Sprint(err), "refused") != 1 {
		t.Errorf("%v", err)
	}
}

func behaviour(err error) string {
	switch {
	case fault.Retryable(err):
		return "retry"
	case fault.NeedsPerson(err):
		return "person"
	case fault.Misconfigured(err):
		return "config"
	}
	return "fail"
}

// The hint is for what went wrong on the way to a real server.
func TestTheHintOfAConnectionIsForItsFailure(t *testing.T) {
	pg := testenv.Postgres(t, "")
	for name, c := range map[string]struct{ dsn, hint string }{
		"a server without TLS": {strings.Replace(pg.DSN("postgres"), "sslmode=disable", "sslmode=require", 1), "The server has ssl = off."},
		"no server":            {"postgres://u@127.0.0.1:1/shop", "Start Postgres, or correct the host and port"},
		"no such host":         {"postgres://u@nowhere.invalid/shop", "Start Postgres, or correct the host and port"},
	} {
		cfg := valid()
		cfg.DSN = c.dsn
		_, err := cfg.ConnectSQL(t.Context())
		if err == nil || !strings.HasPrefix(fault.Hint(err), c.hint) || strings.Contains(fault.Hint(err), "certificate") {
			t.Errorf("%s: %v, hint %q", name, err, fault.Hint(err))
		}
	}
}
