package walpost

import (
	"context"
	"strings"
	"sync"

	"github.com/walpost/walpost/replication"
	"github.com/walpost/walpost/sink"
)

// A Finding is one precondition: what was looked at, what was found, and what mends it.
type Finding struct {
	Part   string `json:"part"`  // postgres, kafka
	Name   string `json:"name"`  // of the precondition
	Level  string `json:"level"` // ok, warn, FAIL
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // a statement, a setting or a command; "" where nothing has to be done
}

// Fail is the level of a Finding without which nothing can run.
const Fail = "FAIL"

// Check looks at every precondition of a run and changes nothing. It needs no time beyond the timeouts of its connections.
func Check(ctx context.Context, cfg Config) ([]Finding, error) {
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	var ours []sink.Finding
	var rows []Finding
	wg.Go(func() {
		var topics map[string]int
		topics, rows = r.sample(ctx)
		for _, t := range cfg.knownTopics() {
			topics[t] = max(topics[t], 0)
		}
		if cfg.Stdout == nil {
			ours = sink.Check(ctx, cfg.sink(), topics, cfg.checkpointTopic())
		}
	})
	var found []Finding
	for _, f := range r.source.Examine(ctx) {
		level := string(f.Level)
		if f.Level == replication.Fail {
			level = Fail
		}
		found = append(found, Finding{"postgres", f.Name, level, f.Detail, f.Fix})
	}
	wg.Wait()
	found = append(found, rows...)
	for _, f := range ours {
		found = append(found, Finding{"kafka", strings.TrimPrefix(f.Name, "kafka "), string(f.Level), f.Detail, f.Fix})
	}
	return found, nil
}

// knownTopics are the topics that can be told without a row.
func (c *Config) knownTopics() []string {
	if t := c.Router.TopicReplacement; t != "" && !strings.ContainsAny(t, `$\`) {
		return []string{t}
	}
	return nil
}

func (c *Config) checkpointTopic() string {
	if c.Checkpoint.Store == "kafka" {
		return c.Checkpoint.Topic
	}
	return ""
}

// SetupSQL is the SQL that makes what is missing for cfg. With a database that can be reached it leaves out what is there;
// otherwise it is for an empty one, and why says why.
func SetupSQL(ctx context.Context, cfg Config) (sql string, why, err error) {
	r, err := New(cfg)
	if err != nil {
		return "", nil, err
	}
	settings := cfg.replication()
	missing, why := r.source.Missing(ctx)
	if why != nil {
		missing = replication.FullSetup(settings)
	}
	sql = replication.SetupSQL(settings, missing)
	if settings.SlotWithSnapshot {
		sql += "\n-- The slot is made by walpost run, together with the snapshot of the rows that are there (source.snapshot: initial).\n"
	}
	return sql, why, nil
}

// Setup makes what is missing, as far as the role may, and returns what it made, also with an error.
func Setup(ctx context.Context, cfg Config) (made []string, err error) {
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return r.source.Apply(ctx)
}
