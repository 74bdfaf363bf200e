package statelog

import (
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/lib/topicname"
)

// StoreConfig says where the position is remembered: in a compacted topic, or in a file on this one host. It is the section
// checkpoint of walpost.yaml.
type StoreConfig struct {
	// A compacted topic, or a file if walpost always runs on one host.
	Store string `yaml:"store" words:"kafka|file"`
	// The topic, with `store: kafka`.
	Topic string `yaml:"topic" example:"shop.checkpoints"`
	// The file, with `store: file`.
	Path string `yaml:"path" example:"/var/lib/walpost/checkpoint"`
}

// DefaultStore is the default.
func DefaultStore() StoreConfig { return StoreConfig{Store: "kafka", Topic: "walpost.checkpoints"} }

// Validate returns what is wrong with the keys together. conf.Check has what is wrong with each.
func (c *StoreConfig) Validate() (found conf.Problems) {
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
