package pgname

import (
	"strings"
	"testing"
)

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
	if got := QuoteLiteral(`it's \ this`); got != ` E'it''s \\ this'` {
		t.Errorf("literal: %s", got)
	}
}
