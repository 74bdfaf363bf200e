package statelog

import (
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/topicname"
)

// StoreConfig says where the position is remembered: in a compacted topic, or in a file on this one host. It is the section
// checkpoint of walpost.yaml.
type StoreConfig struct {
	Store string `yaml:"store"` // kafka or file
	Topic string `yaml:"topic"`
	Path  string `yaml:"path"`
}

// DefaultStore is the default.
func DefaultStore() StoreConfig { return StoreConfig{Store: "kafka", Topic: "walpost.checkpoints"} }

// Validate returns everything that is wrong with the section.
func (c *StoreConfig) Validate() (found conf.Problems) {
	found.OneOf("checkpoint.store", c.Store, "kafka", "file")
	switch {
	case c.Store == "file" && c.Path == "":
		found.Add("checkpoint.path", conf.Required, "with checkpoint.store: file", nil)
	case c.Store == "kafka":
		found.Try("checkpoint.topic", topicname.Check(c.Topic))
	}
	if c.Store == "kafka" && c.Path != "" {
		found.Add("checkpoint.path", conf.Contradicts, "checkpoint.store kafka: it is only for checkpoint.store file", c.Path)
	}
	return found
}
