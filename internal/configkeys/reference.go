package configkeys

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/conf"
)

// Reference is every key as Markdown: a heading for each section, and a list of its keys.
func (k *Key) Reference() string {
	var b strings.Builder
	top := &Key{}
	for _, below := range k.Keys {
		if below.Kind != Section {
			top.Keys = append(top.Keys, below)
		}
	}
	b.WriteString("## Without a section\n\n" + top.items())
	for _, below := range k.Keys {
		if below.Kind == Section {
			fmt.Fprintf(&b, "\n## `%s`\n\n%s\n\n%s", below.Path, Wrap(below.Meaning, ""), below.items())
		}
	}
	return b.String()
}

// items are the keys below k, as items of a list. Keys of which the same is true, such as those of each converter, share an item. So do
// a secret and the key for its file.
func (k *Key) items() string {
	var texts []string
	paths := map[string][]string{} // by text
	var each func(k *Key)
	each = func(k *Key) {
		texted := map[string]string{}
		for _, key := range k.Keys {
			text := cmp.Or(texted[strings.TrimSuffix(key.Name, "_file")], key.text())
			texted[key.Name] = text
			if paths[text] == nil {
				texts = append(texts, text)
			}
			paths[text] = append(paths[text], "`"+key.Path+"`")
			each(key)
		}
	}
	each(k)
	var b strings.Builder
	for _, text := range texts {
		b.WriteString(Wrap("* "+strings.Join(paths[text], ", ")+text, "  ") + "\n")
	}
	return b.String()
}

// text is the key without its name. Most keys are text, so it doesn't say that.
func (k *Key) text() string {
	if facts := k.facts(); facts != string(Text) {
		return fmt.Sprintf(" (%s): %s", facts, k.Meaning)
	}
	return ": " + k.Meaning
}

// unset reports whether the key has no default.
func (k *Key) unset() bool {
	return strings.Contains(k.Path, "[]") || k.Value.IsZero() && slices.Contains([]Kind{Text, Secret, List, Mapping}, k.Kind)
}

// facts are what the value can be, the default, and whether a running walpost takes a new value. A default shows its kind.
func (k *Key) facts() string {
	var facts []string
	switch set := k.Kind != Section && !k.unset() && !k.off(); {
	case !set || k.words() != "":
		facts = append(facts, k.kind())
	case k.Has("min"):
		facts = append(facts, strings.TrimPrefix(k.kind(), string(k.Kind)+" "))
	}
	switch {
	case k.off():
		facts = append(facts, "off by default")
	case k.Kind != Section && !k.unset():
		facts = append(facts, "default `"+short(conf.Plain(k.Value))+"`")
	}
	if k.Has("reload") {
		facts = append(facts, "reloaded")
	}
	return strings.Join(facts, ", ")
}

// kind says what the value can be.
func (k *Key) kind() string {
	words, kind := k.words(), string(k.Kind)
	switch {
	case k.Kind == Text && k.Closed():
		return words
	case k.Kind == List && k.Closed(), k.Kind == Policies:
		return kind + " of " + words
	case k.Has("max"):
		kind += fmt.Sprintf(" `%s`–`%s`", k.Min(), k.Max())
	case k.Has("min") && k.Min() != "0s":
		kind += fmt.Sprintf(" ≥ `%s`", k.Min())
	}
	if words != "" {
		kind += " or " + words
	}
	return kind
}

// words are the words that the value can be.
func (k *Key) words() string {
	words := strings.Join(slices.DeleteFunc(k.Words(), func(w string) bool { return w == "" }), "|")
	if words == "" {
		return ""
	}
	return "`" + words + "`"
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

// Wrap breaks a text into lines of at most 100 characters. All lines but the first begin with indent.
func Wrap(text, indent string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		length := len([]rune(word))
		switch {
		case i == 0:
		case column+1+length > 100:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += length
	}
	return b.String()
}
