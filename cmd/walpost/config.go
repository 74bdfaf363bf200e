package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/otlp"
	"github.com/walpost/walpost/internal/command/statuspage"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/yamlfile"
	"github.com/walpost/walpost/replication"
)

// fileConfig is walpost.yaml: what the relay needs, and what only the program needs.
type fileConfig struct {
	walpost.Config `yaml:",inline"`

	// The HTTP server.
	HTTP statuspage.Config `yaml:"http"`
	// The log on standard error.
	Log logConfig `yaml:"log"`
	// OpenTelemetry traces.
	Tracing otlp.Config `yaml:"tracing"`
	// Options that `walpost debezium convert` couldn't convert. Nothing starts until you delete them.
	Unsupported []string `yaml:"unsupported" example:"[]"`

	file     string           // "" if none was read
	fileless bool             // the command has no --config
	read     *yamlfile.Reader // knows the origin of each value
}

type logConfig struct {
	// The lowest level to log.
	Level string `yaml:"level" words:"debug|info|warn|error" reload:"true"`
	// JSON or human-readable text.
	Format string `yaml:"format" words:"json|console"`
}

func defaultConfig() fileConfig {
	cfg := walpost.DefaultConfig()
	cfg.Logger = slog.New(slog.DiscardHandler) // of the commands that tell the user themselves what they do
	return fileConfig{
		Config: cfg,
		HTTP:   statuspage.DefaultConfig(),
		Log:    logConfig{Level: "info", Format: "json"},
	}
}

// validate returns everything that is wrong, by the paths of walpost.yaml.
func (c *fileConfig) validate(check func(*walpost.Config) walpost.Problems) walpost.Problems {
	found := slices.Concat(conf.Check("http", &c.HTTP), conf.Check("log", &c.Log), check(&c.Config))
	for i, option := range c.Unsupported {
		found.Add(fmt.Sprintf("unsupported[%d]", i), conf.Usable, option, nil)
	}
	c.HTTP.Validate(&found)
	c.Tracing.Validate(&found)
	return found
}

// An override is one value from a flag or the environment, which goes over the file's.
type override struct {
	from  string // --slot, WALPOST_SLOT
	field string
	text  string
}

// loadConfig reads the file (none where name is empty), puts the overrides over it in their order, applies with, which
// sets what has no key, and validates. All that is wrong is returned as one error.
func loadConfig(name string, env func(string) (string, bool), over []override, with func(*fileConfig), check func(*walpost.Config) walpost.Problems) (fileConfig, error) {
	cfg, file := defaultConfig(), yamlfile.New(name, env)
	if name != "" {
		doc, err := os.ReadFile(filepath.Clean(name))
		if err != nil {
			return cfg, fault.Config(fmt.Errorf("--config: %w", err), "")
		}
		file.Read(doc, &cfg)
	}
	for _, o := range over {
		before := cfg.Source.Config
		file.Set(&cfg, o.from, o.field, o.text)
		switch o.field {
		case "source.tables": // one table or several: either way it replaces both forms of the file
			file.Forget("source.table", o.from)
			cfg.Source.Table = ""
		case "source.dsn":
			file.Forget("source.dsn_file", o.from)
			cfg.Source.DSNFile = ""
			if !samePassword(before, o.text) {
				for _, key := range []string{"password", "password_file", "password_command", "rds_iam"} {
					file.Forget("source."+key, o.from)
				}
				cfg.Source.ForgetPassword()
			}
		}
	}
	if with != nil {
		with(&cfg)
	}
	found := cfg.validate(check)
	if name == "" {
		nameFlags(found, cfg.fileless)
	}
	if wrong := file.Check(found); len(wrong) > 0 {
		return cfg, wrong
	}
	cfg.file, cfg.read = name, file
	return cfg, nil
}

// samePassword reports whether the password of the file is for dsn, which replaces the DSN of the file: dsn has no password
// of its own, and names the same user. The password is also for dsn if one of the two users is unknown.
func samePassword(file replication.Config, dsn string) bool {
	if _, has, _ := pg.WithoutPassword(dsn, ""); has {
		return false
	}
	file.ReadSecrets()
	inFile, given := file.Connection(), pg.Database{DSN: dsn}
	inFile.PasswordFile = "" // only the user matters
	a, errA := inFile.Config()
	b, errB := given.Config()
	return file.DSN == "" || errA != nil || errB != nil || a.User == b.User
}

// nameFlags adds to what is required the flag that gives it, for where there is no file to write it to.
func nameFlags(found walpost.Problems, fileless bool) {
	or := map[bool]string{true: " or %s", false: ", %s, or a file with --config"}[fileless]
	for i, p := range found {
		for _, s := range settings {
			if p.Rule == conf.Required && strings.TrimSuffix(s.field, "s") == strings.TrimSuffix(p.Field, "s") {
				found[i].Want = strings.TrimSpace(fmt.Sprintf("%s (--%s"+or+")", p.Want, s.flag, s.env()))
			}
		}
	}
}
