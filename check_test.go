package walpost

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/doctor"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/relay"
)

// What was interrupted is no finding: nobody should be told that a server is down because of it.
func TestACheckThatIsInterruptedFindsNothing(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table, cfg.Kafka.Brokers = "postgres://walpost@127.0.0.1:1/shop", "public.outbox", []string{"127.0.0.1:1"}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if found, err := Check(ctx, cfg); !errors.Is(err, context.Canceled) || found != nil {
		t.Errorf("%+v, %v", found, err)
	}
}

// A registry that is down, or refuses the login, is found without a database and without the password.
func TestCheckAsksTheSchemaRegistry(t *testing.T) {
	r := srfake.New(srfake.WithAuth("Basic dTpwdy1hdnJv")) // u:pw-avro
	t.Cleanup(r.Close)
	check := func(password string) (registry Finding) {
		cfg := DefaultConfig()
		cfg.Source.DSN, cfg.Source.Table, cfg.Kafka.Brokers = "postgres://walpost@127.0.0.1:1/shop", "public.outbox", []string{"127.0.0.1:1"}
		cfg.Records.Value.Name, cfg.SchemaRegistry.URLs = "avro", []string{r.URL()}
		cfg.SchemaRegistry.Username, cfg.SchemaRegistry.Password = "u", conf.Secret(password)
		found, err := Check(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if f.Side == doctor.Registry {
				return f
			}
		}
		return registry
	}
	if f := check("pw-avro"); f.Verdict != OK {
		t.Errorf("%+v", f)
	}
	if f := check("pw-other"); f.Verdict != Fail || !strings.Contains(f.FixText(), "schema_registry.username") || strings.Contains(f.Why+f.FixText(), "pw-") {
		t.Errorf("%+v", f)
	}
	r.Close()
	if f := check("pw-avro"); f.Verdict != Fail || !strings.Contains(f.Why, "connection refused") || strings.Contains(f.Why+f.FixText(), "pw-") {
		t.Errorf("%+v", f)
	}
}

func TestCheckSaysThatACopyIsNotFinished(t *testing.T) {
	rec := &checkpoint.Record{Name: "shop.walpost", Epoch: 3, Position: 0x1000, Copy: &checkpoint.Copy{Origin: checkpoint.OriginSnapshot}}
	f := foreseen{Forecast: relay.Forecast{Record: rec}}
	if found := f.among(nil); len(found) != 1 || !strings.Contains(found[0].Why, "an unfinished copy of rows") {
		t.Errorf("%+v", found)
	}
}

// Whoever looks for the token of a halt must see that nobody looked for it.
func TestCheckSaysThatTheCheckpointIsNotChecked(t *testing.T) {
	bad := Finding{Side: doctor.Postgres, Name: "columns of public.outbox", Verdict: Fail, Why: "it has no column payload", Need: condition.Misconfigured}
	for name, c := range map[string]struct {
		err   error
		found []Finding
		why   string // behind what is not checked
	}{
		"a start refuses the table": {bad.Fault(false), []Finding{bad}, ""},
		"the store is down":         {errors.New("read the checkpoint: refused"), []Finding{{Side: doctor.Kafka, Name: "broker", Verdict: Fail}}, ""},
		"only the checkpoint fails": {errors.New("read the checkpoint: refused"), nil, ": read the checkpoint: refused"},
	} {
		t.Run(name, func(t *testing.T) {
			found := (&foreseen{err: c.err}).among(c.found)
			if f := found[0]; len(found) != 1+len(c.found) || f.Name != "checkpoint" || f.Verdict != Warn || f.FixText() == "" ||
				f.Why != "not checked: whether the checkpoint fits the slot, and whether an event halted the relay"+c.why {
				t.Errorf("%+v", found)
			}
		})
	}
}

// The checkpoint remembers what neither the server nor the configuration shows.
func TestCheckNamesWhatTheCheckpointRemembers(t *testing.T) {
	seen := cdc.Published{Publication: "walpost", OID: 5, Tables: []cdc.PublishedTable{{Name: "public.outbox", OID: 7}, {Name: "public.audit", OID: 8}}}
	now := seen
	now.Tables = []cdc.PublishedTable{{Name: "public.events", OID: 7}, {Name: "public.audit", OID: 8}}
	polled := cdc.Polled{Table: "public.outbox", OID: 7, Database: 3}
	for name, c := range map[string]struct {
		of   relay.Forecast
		want string // the name of the finding; "" for none
		why  string
		fix  string
	}{
		"an accepted gap": {
			of:   relay.Forecast{Record: &checkpoint.Record{}, Accepted: []checkpoint.Accepted{{Token: "abc", Gap: "events may be missing"}}},
			want: "accepted gap abc", why: "events may be missing", fix: "until none is missing or not_confirmed:\nwalpost verify\nThen close the gap:\nwalpost recover --close-gap=abc",
		},
		"a renamed table": {
			of:   relay.Forecast{Record: &checkpoint.Record{Published: &checkpoint.Published{Published: seen}}, Found: cdc.Identity{Published: now}},
			want: "renamed table public.events", why: "was named public.outbox", fix: "source.table",
		},
		"a renamed table that is polled": {
			of:   relay.Forecast{Record: &checkpoint.Record{Polled: &polled}, Found: cdc.Identity{Polled: &cdc.Polled{Table: "app.outbox", OID: 7, Database: 3}}},
			want: "renamed table app.outbox", why: "was named public.outbox", fix: "source.table",
		},
		"the same tables": {of: relay.Forecast{Record: &checkpoint.Record{Published: &checkpoint.Published{Published: seen}, Polled: &polled}, Found: cdc.Identity{Published: seen, Polled: &polled}}},
		"another database": {
			of: relay.Forecast{Record: &checkpoint.Record{Published: &checkpoint.Published{Published: seen}, Polled: &polled}, Found: cdc.Identity{Database: "other", Published: now, Polled: &cdc.Polled{Table: "app.outbox", OID: 7, Database: 4}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := (&foreseen{Forecast: c.of}).among(nil)[1:] // behind the one about the position
			switch {
			case c.want == "" && len(found) == 0:
			case len(found) != 1 || found[0].Name != c.want || found[0].Verdict != Warn || !strings.Contains(found[0].Why, c.why) || !strings.Contains(found[0].FixText(), c.fix):
				t.Errorf("%+v", found)
			}
		})
	}
}
