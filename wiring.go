package walpost

import (
	"slices"

	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
)

// replication is the configuration as the source wants it, but for the columns that the router needs.
func (c *Config) replication() replication.Config {
	s := c.Source
	s.ReadSecrets()
	s.Outbox = replication.Outbox{
		TimeColumn: s.TimeColumn, Partitioned: c.SetupPartitioned, Deletes: c.Cleanup.Mode == "delete", Owns: c.Cleanup.Mode == "drop_partitions",
	}
	s.Logger = c.Logger
	return s
}

// routing is the configuration as the router wants it.
func (c *Config) routing() router.Config {
	cfg := router.Config{Updates: slices.Contains(c.Source.Publish, "update"), Options: c.Router, Records: c.Records}
	for _, name := range c.Source.AllTables() {
		if t, err := replication.ParseTable(name); err == nil { // replication reports the others
			cfg.Tables = append(cfg.Tables, t.Schema+"."+t.Name)
		}
	}
	return cfg
}

// sink is the configuration as the Kafka sink wants it.
func (c *Config) sink() sink.Config {
	cfg := c.Kafka
	cfg.WindowEvents, cfg.WindowBytes, cfg.Logger = c.Delivery.Window.Events, int64(c.Delivery.Window.Bytes), c.Logger
	return cfg
}

// cleaner makes the cleaner of old rows; nil where none is wanted. It asks loop how far the relay is.
func (r *Relay) cleaner(loop *relay.Relay) *cleanup.Cleaner {
	cfg := r.cfg.Cleanup
	if cfg.Mode == cleanup.None {
		return nil
	}
	cfg.Tables, cfg.TimeColumn, cfg.Slot = r.rows.Names.Tables, r.cfg.Source.TimeColumn, r.cfg.Source.Slot
	cfg.Connect, cfg.Logger = r.db.ConnectForTables, r.cfg.Logger
	cfg.Progress = func() cleanup.Progress { return progress(loop.Status()) }
	return cleanup.New(cfg)
}

// progress is how far the relay is: in a session only while it streams. Its epoch names the session, as each takes the next one.
func progress(s relay.Status) cleanup.Progress {
	if s.State != relay.Streaming {
		return cleanup.Progress{}
	}
	return cleanup.Progress{Session: s.Epoch, Confirmed: s.Confirmed}
}
