package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/walpost/walpost"
)

// fileConfig is walpost.yaml: what the relay needs, and what only the program needs.
type fileConfig struct {
	walpost.Config `yaml:",inline"`

	HTTP httpConfig `yaml:"http"`
	Log  logConfig  `yaml:"log"`
}

type httpConfig struct {
	// Listen is host:port of metrics, health and the status page; "off" or empty for none.
	Listen string `yaml:"listen"`
	// Hosts are names by which browsers reach the status page, beside IP addresses and localhost.
	Hosts []string `yaml:"hosts"`
}

func (c httpConfig) off() bool { return c.Listen == "" || c.Listen == "off" }

type logConfig struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

func defaultConfig() fileConfig {
	return fileConfig{
		Config: walpost.DefaultConfig(),
		HTTP:   httpConfig{Listen: "127.0.0.1:9640", Hosts: []string{}},
		Log:    logConfig{Level: "info", Format: "json"},
	}
}

// validate returns everything that is wrong, by the paths of walpost.yaml.
func (c *fileConfig) validate() walpost.Problems {
	found := c.Config.Validate()
	add := func(field, format string, args ...any) {
		found = append(found, walpost.Problem{Field: field, Text: fmt.Sprintf(format, args...)})
	}
	if !c.HTTP.off() {
		if _, _, err := net.SplitHostPort(c.HTTP.Listen); err != nil {
			add("http.listen", "must be host:port, or off (got %q)", c.HTTP.Listen)
		}
	}
	for i, host := range c.HTTP.Hosts {
		if !hostName.MatchString(host) {
			add(fmt.Sprintf("http.hosts[%d]", i), "must be a name without scheme, port and wildcard (got %q)", host)
		}
	}
	if !slices.Contains(logLevels, c.Log.Level) {
		add("log.level", "must be one of %s (got %q)", strings.Join(logLevels, ", "), c.Log.Level)
	}
	if c.Log.Format != "json" && c.Log.Format != "console" {
		add("log.format", "must be one of json, console (got %q)", c.Log.Format)
	}
	return found
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)

var logLevels = []string{"debug", "info", "warn", "error"}

// configErrors is everything that is wrong with what the user wrote; exit code 2.
type configErrors []problem

func (e configErrors) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

func (configErrors) Misconfigured() bool { return true }

// An override is one value from a flag or the environment, which goes over the file's.
type override struct {
	from  string // --slot, WALPOST_SLOT
	field string
	text  string
}

// loadConfig reads the file (none where name is empty), puts the overrides over it in their order, applies with, which
// sets what has no key, and validates. All that is wrong is returned as one error.
func loadConfig(name string, env func(string) (string, bool), over []override, with func(*fileConfig)) (fileConfig, error) {
	cfg := defaultConfig()
	d := &decoder{file: name, env: env, places: map[string]place{}}
	if name != "" {
		doc, err := os.ReadFile(filepath.Clean(name))
		if err != nil {
			return cfg, configErrors{{at: place{label: "--config"}, text: err.Error()}}
		}
		d.decode(doc, &cfg)
	}
	for _, o := range over {
		d.override(&cfg, o)
	}
	if with != nil {
		with(&cfg)
	}
	written := d.problems // what is wrong with how a field is written tells enough about it
	for _, p := range cfg.validate() {
		if !reported(written, p.Field) {
			d.problems = append(d.problems, problem{at: d.find(p.Field), field: p.Field, text: p.Text + d.remedy(name, p)})
		}
	}
	if len(d.problems) == 0 {
		return cfg, nil
	}
	slices.SortStableFunc(d.problems, func(a, b problem) int {
		if a.at.line != b.at.line {
			return a.at.line - b.at.line
		}
		return a.at.col - b.at.col
	})
	return cfg, configErrors(d.problems)
}

func (d *decoder) override(cfg *fileConfig, o override) {
	if o.field == "source.table" {
		// One table or several: either way it replaces both forms of the file.
		cfg.Source.Table, cfg.Source.Tables = "", splitList(o.text)
		d.forget("source.table", place{label: o.from})
		return
	}
	d.forget(o.field, place{label: o.from})
	v := reflect.ValueOf(cfg).Elem()
	for rest := o.field; rest != ""; {
		fields := fieldsOf(v)
		if f, ok := fields[rest]; ok {
			if err := setText(f, o.text); err != nil {
				d.problems = append(d.problems, problem{at: place{label: o.from}, field: o.field, text: err.Error()})
			}
			return
		}
		var key string
		key, rest, _ = strings.Cut(rest, ".")
		v = fields[key]
	}
}

// forget drops what the file said about a field that is overridden, wrong or right.
func (d *decoder) forget(field string, at place) {
	covers := func(f string) bool {
		return f == field || strings.HasPrefix(f, field+"[") || field == "source.table" && strings.HasPrefix(f, "source.tables")
	}
	d.problems = slices.DeleteFunc(d.problems, func(p problem) bool { return covers(p.field) })
	for f := range d.places {
		if covers(f) {
			delete(d.places, f)
		}
	}
	d.places[field] = at
	if field == "source.table" {
		d.places["source.tables"] = at
	}
}

// reported says whether something is already known to be wrong with a field, so that its absence is no further news.
func reported(problems []problem, field string) bool {
	return slices.ContainsFunc(problems, func(p problem) bool {
		return p.field == field || p.field == field+"_file" || strings.HasPrefix(p.field, field+"[") ||
			field == "source.table" && strings.HasPrefix(p.field, "source.tables") ||
			p.field == "" // the file could not be read as YAML
	})
}

// find is where a field was written, or else what is around it, or else the file.
func (d *decoder) find(field string) place {
	for path := field; path != ""; {
		for _, name := range []string{path, path + "_file", path + "s"} { // source.table may stand as source.tables
			if at, ok := d.places[name]; ok {
				return at
			}
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			break
		}
		path = path[:i]
	}
	return place{label: d.file}
}

// remedy names the flag for what is required, where there is no file to write it to.
func (d *decoder) remedy(file string, p walpost.Problem) string {
	if file != "" || !strings.HasPrefix(p.Text, "is required") {
		return ""
	}
	for _, s := range settings {
		if s.field == p.Field {
			return fmt.Sprintf(" (--%s, %s, or a file by --config)", s.flag, s.env())
		}
	}
	return ""
}
