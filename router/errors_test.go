package router

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
)

func TestARowErrorNamesRuleOptionColumnAndValue(t *testing.T) {
	const placement, long = "router.table.fields.additional.placement", "or der 0123456789012345678901234567890123456789"
	rel := table("id uuid not null key", "kind text", "aggregate_id text", "body jsonb", "p int4", "at timestamp", "n numeric not null", "v int4")
	options := func(c *Config) {
		c.RouteBy, c.Payload, c.Timestamp, c.SchemaVersion = "kind", "body", "at", "v"
		c.AdditionalPlacement = "p:partition,n:header:kind,p:envelope"
		c.Updates = true
	}
	row := []string{"u-1", "order", "k", "1", "1", "2024-02-29 12:34:56", "1", "1"}
	with := func(column int, value string) *cdc.Event {
		values := slices.Clone(row)
		values[column] = value
		return insert(rel, values...)
	}
	oldKey := updated(rel, []string{null, null, null, null, null, null, null, null}, row)
	for _, c := range []struct {
		name string
		ev   *cdc.Event
		want Problem // without the message
	}{
		{"null topic", with(1, null), Problem{Rule: ValueSet, Option: "router.route.by.field", Column: "kind"}},
		{"bad topic", with(1, long), Problem{Rule: TopicValid, Option: "router.route.by.field", Column: "kind", Value: long[:maxValue]}},
		{"negative partition", with(4, "-1"), Problem{Rule: ValueValid, Option: placement, Column: "p", Value: "-1"}},
		{"no number", with(4, "x"), Problem{Rule: ValueValid, Option: placement, Column: "p", Value: "x"}},
		{"early timestamp", with(5, "1969-01-01 00:00:00"), Problem{Rule: ValueValid, Option: "router.table.field.event.timestamp", Column: "at", Value: "1969-01-01 00:00:00"}},
		{"header under an alias", with(6, "NaN"), Problem{Rule: ValueValid, Option: placement, Column: "n", Value: "NaN"}},
		{"version 0", with(7, "0"), Problem{Rule: ValueValid, Option: "router.table.field.event.schema.version", Column: "v", Value: "0"}},
		{"old key not sent", oldKey, Problem{Rule: ValueSent, Option: "source.publish", Column: "id"}},
		{"column gone", insert(table("id uuid", "kind text", "aggregate_id text", "p int4", "at timestamp", "n text", "v int4"), "u-1"), Problem{Rule: ColumnExists, Option: "router.table.field.event.payload", Column: "body"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			options(&cfg)
			r, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			var rec cdc.Record
			_, err = r.Route(c.ev, &rec)
			var bad *RowError
			if !errors.As(err, &bad) || len(bad.Problems) != 1 {
				t.Fatalf("%v, want a row error with one problem", err)
			}
			got := bad.Problems[0]
			if c.want.Message = got.Message; got != c.want || rec.EventID != "u-1" {
				t.Errorf("\n got %+v of %q\nwant %+v", got, rec.EventID, c.want)
			}
			if strings.Contains(bad.Hint(), "router.route.topic.regex") != (c.name == "bad topic" && bad.LSN != 0) {
				t.Errorf("the hint is %s", bad.Hint())
			}
			if !strings.Contains(bad.Reason(), got.Message) || strings.Contains(bad.Reason(), "u-1") || !strings.Contains(bad.Error(), bad.Reason()) {
				t.Errorf("reason %q of %q", bad.Reason(), bad)
			}
		})
	}
}

func TestAConfigErrorHasAllProblems(t *testing.T) {
	cfg := DefaultConfig()
	cfg.TopicRegex, cfg.Payload, cfg.HStore = "(", "", "x"
	_, err := New(cfg)
	var wrong conf.Problems
	if !errors.As(err, &wrong) || len(wrong) != 3 {
		t.Fatalf("%v, want three problems", err)
	}
	for i, want := range []conf.Problem{
		{Field: "router.table.field.event.payload", Rule: conf.MustBe},
		{Field: "records.hstore.handling.mode", Rule: conf.MustBe},
		{Field: "router.route.topic.regex", Rule: conf.Usable},
	} {
		if p := wrong[i]; p.Rule != want.Rule || p.Field != want.Field {
			t.Errorf("%+v, want %+v", p, want)
		}
	}
	var bad *configError
	r, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Needs(table("id uuid", "aggregate_type text", "aggregatetype text", "aggregate_id pair"))
	if !errors.As(err, &bad) || bad.table != "public.outbox" {
		t.Fatalf("%v, want a configuration error of the table", err)
	}
	var rules []Rule
	for _, p := range bad.problems {
		rules = append(rules, p.Rule)
	}
	if want := []Rule{ColumnType, ColumnExists, ColumnChosen}; !slices.Equal(rules, want) {
		t.Errorf("rules %q, want %q", rules, want)
	}
	cfg = DefaultConfig()
	cfg.AdditionalPlacement = "gone:header,lost:header:was"
	if r, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	_, err = r.Needs(table("id uuid", "aggregate_type text", "aggregatetype text", "aggregate_id text", "payload text"))
	if want := "Name one of the two columns in router.route.by.field. Set router.table.fields.additional.placement to an existing column of the table, or add the column to the table."; fault.Hint(err) != want {
		t.Errorf("the hint of %v is %q, want %q", err, fault.Hint(err), want)
	}
}

// A bad row says why it is bad, and which key its record would have had, wherever the router stopped.
func TestABadRowHasItsReasonAndItsKey(t *testing.T) {
	with := func(key string, more ...string) *cdc.Relation {
		return table(append([]string{"id uuid not null key", "aggregate_type text", "aggregate_id " + key, "payload jsonb"}, more...)...)
	}
	text := with("text")
	for name, c := range map[string]struct {
		ev   *cdc.Event
		want string
	}{
		"no topic":                      {insert(text, "u", null, "k", "1"), "unroutable, key k"},
		"a topic with a blank":          {insert(text, "u", "a b", "k", "1"), "invalid_topic, key k"},
		"an empty key":                  {insert(text, "u", "a b", "", "1"), "invalid_topic, key "},
		"a null key":                    {insert(text, "u", "a b", null, "1"), "invalid_topic, null key"},
		"behind the key":                {insert(with("text", "p int4"), "u", "order", "k", "1", "-1"), "unroutable, key k, topic outbox.event.order"},
		"no payload column":             {insert(table("id uuid", "aggregate_type text", "aggregate_id int8"), "u", "order", "7"), "unroutable, key 7"},
		"no key column":                 {insert(table("id uuid", "aggregate_type text", "payload jsonb"), "u", "order", "1"), "unroutable, key unknown"},
		"a key of no type":              {insert(with("pair"), "u", "order", "(1,2)", "1"), "unroutable, key unknown"},
		"a key that is no number":       {insert(with("int4"), "u", "order", "seven", "1"), "unroutable, key unknown, topic outbox.event.order"},
		"an update without its old key": {updated(text, []string{null, null, null, null}, []string{"u", "order", "k", "1"}), "unroutable, key k"},
		"an update that leaves its key": {updated(text, []string{null, null, "k", null}, []string{"u", "order", "~", "1"}), "unroutable, key k"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Updates, cfg.AdditionalPlacement, cfg.AdditionalMissing = true, "p:partition", "ignore"
			r, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			rec := cdc.Record{Key: []byte("of the row before"), Topic: "of the row before"}
			_, err = r.Route(c.ev, &rec)
			var bad *RowError
			if !errors.As(err, &bad) {
				t.Fatalf("%v: want a row error", err)
			}
			got := string(bad.BadBecause())
			switch {
			case !bad.KeyFound():
				got += ", key unknown"
			case rec.Key == nil:
				got += ", null key"
			default:
				got += ", key " + string(rec.Key)
			}
			if rec.Topic != "" {
				got += ", topic " + rec.Topic
			}
			if got != c.want || rec.EventID != "u" {
				t.Errorf("%s, id %q; want %s", got, rec.EventID, c.want)
			}
		})
	}
}
