package registry

import (
	"fmt"
	"net/url"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/kafka"
)

// Config says how to reach a schema registry and how to log in.
type Config struct {
	// Registry URLs (Confluent's API), tried in turn.
	URLs []string `yaml:"urls" example:"[https://registry.internal:8081]"`
	// The user name.
	Username string `yaml:"username" example:"walpost"`
	// The user's password.
	Password conf.Secret `yaml:"password" example:"secret"`
	// A file with the password.
	PasswordFile string `yaml:"password_file" example:"/run/secrets/registry"`
	// The certificates for https.
	TLS *kafka.TLS `yaml:"tls"`
}

// Validate returns what is wrong with the keys together and with the files, or nil. It connects nowhere.
func (c *Config) Validate() (found conf.Problems) {
	for i, text := range c.URLs {
		if u, err := url.Parse(text); err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
			found.Add(fmt.Sprintf("schema_registry.urls[%d]", i), conf.MustBe, "an https or http URL without a user", nil)
		}
	}
	c.Password.Check(&found, "schema_registry.password", c.PasswordFile)
	if c.Username == "" && (c.Password != "" || c.PasswordFile != "") {
		found.Add("schema_registry.username", conf.Required, "with a password", nil)
	}
	if c.TLS != nil {
		c.TLS.Validate(&found, "schema_registry.tls")
	}
	return found
}
