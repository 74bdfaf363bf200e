package configkeys

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/conf"
)

// Reference is every key as Markdown: a heading for each section, and a list of its keys.
func (k *Key) Reference() string {
	var b strings.Builder
	b.WriteString("## Without a section\n\n")
	for _, below := range k.Keys {
		if below.Kind != Section {
			below.item(&b)
		}
	}
	for _, below := range k.Keys {
		if below.Kind == Section {
			fmt.Fprintf(&b, "\n## `%s`\n\n%s\n", below.Path, strings.Join(conf.Wrap(below.Meaning, 100), "\n"))
			b.WriteString("\n")
			for _, key := range below.Keys {
				key.item(&b)
			}
		}
	}
	return b.String()
}

// item is the key and the keys below it, as items of a list.
func (k *Key) item(b *strings.Builder) {
	text := fmt.Sprintf("`%s` (%s): %s", k.Path, k.facts(), k.Meaning)
	if k.Example != nil && k.Kind != Section {
		text += " Example: `" + short(k.Example) + "`."
	}
	b.WriteString("* " + strings.Join(conf.Wrap(text, 98), "\n  ") + "\n")
	for _, below := range k.Keys {
		below.item(b)
	}
}

// facts are the type, the default, the bounds, and whether a running walpost takes a new value.
func (k *Key) facts() string {
	facts := k.kind()
	switch {
	case k.Off():
		facts += ", off by default"
	case k.Kind == Section || strings.Contains(k.Path, "[]"): // of an item
	case k.Value.IsZero() && slices.Contains([]Kind{Text, Secret, List, Mapping}, k.Kind):
		facts += ", no default"
	default:
		facts += ", default `" + short(conf.Plain(k.Value)) + "`"
	}
	facts += k.bound()
	if k.Has("reload") {
		facts += ", reloaded by SIGHUP"
	}
	return facts
}

// kind says what the value can be.
func (k *Key) kind() string {
	words := slices.DeleteFunc(k.Words(), func(w string) bool { return w == "" })
	for i := range words {
		words[i] = "`" + words[i] + "`"
	}
	switch {
	case k.Kind == Text && k.Closed():
		return either(words)
	case k.Kind == List && k.Closed(), k.Kind == Policies:
		return string(k.Kind) + " of " + strings.Join(words, ", ")
	}
	return either(append([]string{string(k.Kind)}, words...))
}

// bound says from where to where the value may be.
func (k *Key) bound() string {
	switch {
	case k.Has("max"):
		return fmt.Sprintf(", from `%s` to `%s`", k.Tag.Get("min"), k.Tag.Get("max"))
	case k.Has("min"):
		return fmt.Sprintf(", at least `%s`", k.Tag.Get("min"))
	}
	return ""
}

func either(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// short is a value on one line, as YAML in flow style.
func short(v any) string {
	if text, ok := v.(string); ok {
		return text
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // an example has something that JSON has not
	}
	return strings.NewReplacer(`":`, ": ", `"`, "", ",", ", ").Replace(string(text))
}
