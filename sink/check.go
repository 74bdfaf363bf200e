package sink

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/topicname"
)

// A Level says how bad a Finding is.
type Level string

// The levels of a Finding.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, and costs or threatens something
	Fail Level = "FAIL" // does not work
)

// A Finding is one precondition: what was looked at, what was found, and what would mend it ("" where nothing has to).
type Finding struct {
	Name   string
	Level  Level
	Detail string
	Fix    string
}

// Expected is what a run would ask of Kafka, as far as it is known beforehand.
type Expected struct {
	Topics     map[string]Traffic
	Checkpoint string // topic of the checkpoints; "" for none
	Name       string // of the relay, whose checkpoint it is
	// SourceAhead is how far the database's clock is ahead of this machine's; nil where that is not known.
	SourceAhead *time.Duration
}

// Traffic is what is known of the records that go to a topic. The zero value is nothing.
type Traffic struct {
	Largest   int       // bytes of the largest, as BatchBytes has them
	Newest    time.Time // the newest timestamp
	Keyless   bool      // there are some without a key
	Partition int32     // the highest that is asked for
}

// Add takes a record into account.
func (t *Traffic) Add(rec *cdc.Record) {
	t.Largest = max(t.Largest, BatchBytes(rec))
	t.Partition = max(t.Partition, rec.Partition)
	t.Keyless = t.Keyless || rec.Key == nil
	if rec.Time.After(t.Newest) {
		t.Newest = rec.Time
	}
}

// topicsTimeout bounds all that Check asks once the brokers have answered.
const topicsTimeout = 30 * time.Second

// Check looks at the Kafka side of the preconditions. It changes nothing: what a run would create is only asked for, and nothing is
// written. It calls expected after it has looked at the brokers, whether they can be reached or not. It returns some ten seconds
// after its call at the latest where they cannot, else topicsTimeout after expected has returned.
func Check(ctx context.Context, cfg Config, expected func() Expected) []Finding {
	cl, err := cfg.NewClient()
	if err != nil {
		expected()
		return []Finding{{"configuration", Fail, err.Error(), "correct the configuration"}}
	}
	defer cl.Close()
	c := checker{cl: cl, cfg: cfg, mend: newMend(cfg), now: time.Now}
	reached := c.reach(ctx)
	want := expected()
	if !reached {
		return c.found
	}
	ctx, cancel := context.WithTimeout(ctx, topicsTimeout)
	defer cancel()
	c.clocks(ctx, want.SourceAhead)
	c.cluster(ctx)
	c.idempotent(ctx)
	c.topics(ctx, want.Topics)
	if want.Checkpoint != "" {
		c.checkpoint(ctx, want.Checkpoint, want.Name)
	}
	return c.found
}

type checker struct {
	cl    *kgo.Client
	cfg   Config
	mend  mend
	now   func() time.Time
	found []Finding

	brokers int
	broker  int32 // one that answers
	caps    bool  // see caps
	// ahead is how far the database's clock is ahead of the brokers'; known where both are told.
	ahead      time.Duration
	aheadKnown bool
}

func (c *checker) add(name string, level Level, detail, fix string) {
	c.found = append(c.found, Finding{name, level, detail, fix})
}

// topics looks at the topics that records go to, all at once.
func (c *checker) topics(ctx context.Context, traffic map[string]Traffic) {
	var names []string
	for _, t := range slices.Sorted(maps.Keys(traffic)) {
		if err := topicname.Check(t); err != nil {
			c.add("topic "+t, Fail, err.Error(), "Change router.route.topic.replacement or the value it is made of.")
			continue
		}
		names = append(names, t)
	}
	if len(traffic) == 0 {
		c.add("topics", OK, "none is known, and so none is looked at: rows name them, and there is none that could be read", "Look again when there are rows.")
	}
	if len(names) == 0 {
		return
	}
	step, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	known, err := kafka.Topics(step, c.cl, names, topicSettings...)
	if err != nil {
		c.add("topics", Fail, "the brokers do not answer for them: "+err.Error(), "")
		return
	}
	for i := range known {
		c.topic(ctx, &known[i], traffic[known[i].Name])
	}
}

// cluster judges what is set for all topics, as far as the brokers tell.
func (c *checker) cluster(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	kv, err := kafka.BrokerSettings(ctx, c.cl, c.broker, "auto.create.topics.enable", "socket.request.max.bytes")
	if err != nil {
		c.add("broker settings", OK, fmt.Sprintf("not looked at: the brokers do not tell them (%v); a run does not need that", err), "")
		return
	}
	c.brokerSettings(kv)
}
