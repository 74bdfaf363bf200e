// Package parity compares the records that walpost writes with those that Kafka Connect with Debezium's Outbox EventRouter writes
// from the same WAL.
//
// A Case is a Debezium configuration, tables, and SQL. Debezium runs one on the real thing, Relay on walpost; both give an Outcome,
// the records as they are read back from the brokers, and Diff says what differs. What Debezium gave is kept in the case's file, so
// that walpost can be compared without Debezium; differences on purpose are kept in a List.
package parity

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Case is one configuration with tables and rows.
type Case struct {
	Group   string // the name of its file
	Name    string
	Comment string // lines that begin with #, as they stand before the case
	Config  []Option
	DDL     string // runs before the slot is made; statements end with a semicolon at the end of a line
	SQL     string // runs when the slot is there, each statement a transaction unless it says BEGIN
	Want    string // what Debezium gave: Outcome.String
}

// An Option is one of a connector's, under Debezium's name.
type Option struct{ Key, Value string }

// A File is a group of cases.
type File struct {
	Path  string
	Head  string // comment lines before the first case
	Cases []*Case
}

// Slug is the case's name where only a-z, 0-9 and _ may stand, such as topic.prefix: no other case has the same.
func (c *Case) Slug() string { return slug(c.Group + "_" + c.Name) }

// maxSlug leaves room for a topic's name behind it.
const maxSlug = 60

func slug(s string) string {
	s = strings.Trim(notSlug.ReplaceAllString(strings.ToLower(s), "_"), "_")
	return strings.TrimRight(s[:min(len(s), maxSlug)], "_")
}

var notSlug = regexp.MustCompile(`[^a-z0-9]+`)

// Option returns the value of an option, "" where the case does not set it.
func (c *Case) Option(key string) string {
	for _, o := range c.Config {
		if o.Key == key {
			return o.Value
		}
	}
	return ""
}

// ReadCorpus reads every group of cases in a folder: *.txt whose names are in lower case.
func ReadCorpus(dir string) ([]*File, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "[a-z]*.txt"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var files []*File
	seen := map[string]string{}
	for _, path := range paths {
		f, err := ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, c := range f.Cases {
			if other, ok := seen[c.Slug()]; ok {
				return nil, fmt.Errorf("%s: case %q has the same short name, %s, as %s", path, c.Name, c.Slug(), other)
			}
			seen[c.Slug()] = c.Group + ", " + c.Name
		}
		files = append(files, f)
	}
	return files, nil
}

// ReadFile reads one group of cases:
//
//	# what the group is about
//
//	# why this case
//	== name of a case
//	-- config --
//	transforms.outbox.route.by.field=kind
//	-- ddl --
//	CREATE TABLE …;
//	-- sql --
//	INSERT …;
//	-- debezium --
//	what Debezium gave, see Outcome
//
// A value that begins with " is quoted as in Go; (none) takes an option of Base away.
func ReadFile(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &File{Path: path}
	group := strings.TrimSuffix(filepath.Base(path), ".txt")
	var c *Case
	var section *string // nil: between cases
	var config, comment string
	finish := func() error {
		if c == nil {
			return nil
		}
		c.DDL, c.SQL, c.Want = trimLines(c.DDL), trimLines(c.SQL), trimLines(c.Want)
		for l := range strings.Lines(config) {
			o, err := parseOption(strings.TrimRight(l, "\n"))
			if err != nil {
				return fmt.Errorf("%s: case %q: %w", path, c.Name, err)
			}
			c.Config = append(c.Config, o)
		}
		config = ""
		return nil
	}
	line := 0
	for l := range strings.Lines(string(text)) {
		line++
		bare := strings.TrimRight(l, "\n")
		switch {
		case strings.HasPrefix(bare, "== "):
			if err := finish(); err != nil {
				return nil, err
			}
			if i := strings.LastIndex(comment, "\n\n"); c == nil && i >= 0 {
				f.Head, comment = trimLines(comment[:i]), comment[i+2:]
			}
			c = &Case{Group: group, Name: strings.TrimPrefix(bare, "== "), Comment: trimLines(comment)}
			f.Cases = append(f.Cases, c)
			comment, section = "", nil
		case strings.HasPrefix(bare, "#"):
			section = nil
			comment += l
		case bare == "" && section == nil:
			comment += l
		case c == nil:
			return nil, fmt.Errorf("%s:%d: expected a comment or == and a name", path, line)
		case bare == "-- config --":
			section = &config
		case bare == "-- ddl --":
			section = &c.DDL
		case bare == "-- sql --":
			section = &c.SQL
		case bare == "-- debezium --", bare == "-- differs --":
			section = &c.Want
		case section == nil:
			return nil, fmt.Errorf("%s:%d: expected -- config --, -- ddl --, -- sql -- or -- debezium --", path, line)
		case section == &config && bare == "":
		default:
			*section += l
		}
	}
	if err := finish(); err != nil {
		return nil, err
	}
	return f, nil
}

func parseOption(line string) (Option, error) {
	key, value, ok := strings.Cut(line, "=")
	if !ok {
		return Option{}, fmt.Errorf("option %q has no =", line)
	}
	if strings.HasPrefix(value, `"`) {
		var err error
		if value, err = strconv.Unquote(value); err != nil {
			return Option{}, fmt.Errorf("option %q: %w", line, err)
		}
	}
	return Option{key, value}, nil
}

// trimLines takes empty lines at both ends away and leaves one line end, unless nothing is left.
func trimLines(s string) string {
	if s = strings.Trim(s, "\n"); s == "" {
		return ""
	}
	return s + "\n"
}

// Bytes is the file as ReadFile reads it.
func (f *File) Bytes() []byte {
	var b bytes.Buffer
	b.WriteString(f.Head)
	for _, c := range f.Cases {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(c.Text())
	}
	return b.Bytes()
}

// Text is the case as it stands in a file.
func (c *Case) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s== %s\n", c.Comment, c.Name)
	if len(c.Config) > 0 {
		b.WriteString("-- config --\n")
		for _, o := range c.Config {
			value := o.Value
			if strings.HasPrefix(value, `"`) || strings.TrimSpace(value) != value || strings.ContainsAny(value, "\r\n\t\x00") {
				value = strconv.Quote(value)
			}
			fmt.Fprintf(&b, "%s=%s\n", o.Key, value)
		}
	}
	for _, s := range []struct{ name, text string }{{"ddl", c.DDL}, {"sql", c.SQL}, {"debezium", c.Want}} {
		if s.text != "" {
			fmt.Fprintf(&b, "-- %s --\n%s", s.name, s.text)
		}
	}
	return b.String()
}
