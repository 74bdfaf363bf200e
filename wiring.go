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
	return replication.Config{
		DSN:              orFile(s.DSN, s.DSNFile),
		Password:         orFile(s.Password, s.PasswordFile),
		Tables:           s.AllTables(),
		Slot:             s.Slot,
		Publication:      s.Publication,
		Publish:          s.Publish,
		Create:           s.Create,
		SnapshotChosen:   s.Snapshot != "",
		SlotWithSnapshot: s.Snapshot == "initial",
		Outbox: replication.Outbox{
			TimeColumn: s.TimeColumn, Partitioned: c.SetupPartitioned, Deletes: c.Cleanup.Mode == "delete", Owns: c.Cleanup.Mode == "drop_partitions",
		},
		Failover:          s.Failover,
		ConfirmKeepalives: s.ConfirmKeepalives,
		Logger:            c.Logger,
	}
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

// orFile is a secret's value, from its file where it has one. Validate reports what is wrong with the file.
func orFile(value Secret, file string) string {
	text, _ := value.Or(file)
	return text
}

// sink is the configuration as the Kafka sink wants it.
func (c *Config) sink() sink.Config {
	cfg := c.Kafka
	cfg.WindowEvents, cfg.WindowBytes, cfg.Logger = c.Delivery.Window.Events, int64(c.Delivery.Window.Bytes), c.Logger
	return cfg
}

// cleaner makes the cleaner of old rows; nil where none is wanted. It asks loop how far the relay is.
func (r *Relay) cleaner(loop *relay.Relay) *cleanup.Cleaner {
	c := r.cfg.Cleanup
	if c.Mode == "none" {
		return nil
	}
	return cleanup.New(cleanup.Config{
		Mode:       cleanup.Mode(c.Mode),
		Tables:     r.rows.Names.Tables,
		TimeColumn: r.cfg.Source.TimeColumn,
		Keep:       c.Keep,
		Slot:       r.cfg.Source.Slot,
		Connect:    r.db.ConnectForTables,
		Progress:   func() cleanup.Progress { return progress(loop.Status()) },
		Logger:     r.cfg.Logger,
	})
}

// progress is how far the relay is: in a session only while it streams. Its epoch names the session, as each takes the next one.
func progress(s relay.Status) cleanup.Progress {
	if s.State != relay.Streaming {
		return cleanup.Progress{}
	}
	return cleanup.Progress{Session: s.Epoch, Confirmed: s.Confirmed}
}
