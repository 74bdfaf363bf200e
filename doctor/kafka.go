package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/topicname"
	"github.com/walpost/walpost/sink"
)

// Traffic is what is known of the records that go to a topic. The zero value says nothing.
type Traffic struct {
	Largest   int       // bytes of the largest record, as sink.BatchBytes counts them
	Newest    time.Time // the newest timestamp
	Keyless   bool      // a record has no key
	Partition int32     // the highest partition that a record asks for
}

// Add takes a record into account.
func (t *Traffic) Add(rec *cdc.Record) {
	t.Largest = max(t.Largest, sink.BatchBytes(rec))
	t.Partition = max(t.Partition, rec.Partition)
	t.Keyless = t.Keyless || rec.Key == nil
	if rec.Time.After(t.Newest) {
		t.Newest = rec.Time
	}
}

// Expected is what the database says of a run: the records for each topic, and how far the database's clock is ahead of this
// machine's clock (nil if that is not known).
type Expected struct {
	Topics map[string]Traffic
	// Patterns are the names of the topics that rows go to, as in router.TopicPatterns.
	Patterns      []string
	DatabaseAhead *time.Duration
}

const (
	// askTimeout bounds one step of CheckKafka, and topicsTimeout all steps after the brokers have answered.
	askTimeout    = 10 * time.Second
	topicsTimeout = 30 * time.Second
)

// CheckKafka looks at the Kafka side of the preconditions. cfg is valid, checkpoint is the topic of the checkpoints, or empty, and name is
// the relay's name. It changes nothing: it only asks whether topics could be created. It calls expected once it has looked at the brokers, also if
// it cannot reach them. Then it takes topicsTimeout at most.
func CheckKafka(ctx context.Context, cfg sink.Config, checkpoint, name string, expected func() Expected) []Finding {
	c := kafkaCheck{cfg: cfg, now: time.Now}
	var err error
	if c.cl, err = cfg.NewClient(); err != nil {
		expected()
		c.add("configuration", Fail, err.Error(), fix.Words("Correct the configuration."))
		return c.found
	}
	defer c.cl.Close()
	c.fixes = newKafkaFixes(cfg.Config)
	reached := c.reach(ctx)
	want := expected()
	if !reached {
		return c.found
	}
	ctx, cancel := context.WithTimeout(ctx, topicsTimeout)
	defer cancel()
	c.clocks(ctx, want.DatabaseAhead)
	c.cluster(ctx)
	c.idempotent(ctx)
	if len(want.Topics) == 0 && len(want.Patterns) > 0 {
		c.unnamed(ctx, checkpoint, want.Patterns)
	}
	c.topics(ctx, want.Topics)
	if checkpoint != "" {
		c.checkpoint(ctx, checkpoint, name)
	}
	if cfg.Bury {
		c.letters(ctx, "dead letter", cfg.DeadLetters, true)
	}
	if cfg.Parking != "" { // a relay reads it whatever the policy
		c.letters(ctx, "parked event", cfg.Parking, cfg.Park)
	}
	if cfg.Park {
		c.transactional(ctx, name)
	}
	return c.found
}

type kafkaCheck struct {
	cl    *kgo.Client
	cfg   sink.Config
	fixes kafkaFixes
	now   func() time.Time
	found []Finding

	brokers int   // of the cluster
	largest int   // max.message.bytes of the topics that rows go to
	broker  int32 // one that answers
	caps    bool  // every broker that answers caps min.insync.replicas, see capsMinISR
	creates bool  // auto.create.topics.enable
	// ahead is how far the database's clock is ahead of the brokers' clock, if aheadKnown.
	ahead      time.Duration
	aheadKnown bool
}

func (c *kafkaCheck) add(name string, verdict Verdict, why string, steps ...fix.Step) {
	c.found = append(c.found, Finding{Side: Kafka, Name: name, Verdict: verdict, Why: why, Fix: steps, Provider: c.fixes.provider})
}

// topics looks at the topics that records go to, all at once.
func (c *kafkaCheck) topics(ctx context.Context, traffic map[string]Traffic) {
	var names []string
	for _, t := range slices.Sorted(maps.Keys(traffic)) {
		if err := topicname.Check(t); err != nil {
			c.add("topic "+t, Fail, err.Error(), fix.Words("Change router.route.topic.replacement or the value that it uses."))
			continue
		}
		names = append(names, t)
	}
	if len(names) == 0 {
		return
	}
	step, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	known, err := kafka.Topics(step, c.cl, names, topicSettings...)
	if err != nil {
		c.add("topics", Fail, "the brokers do not answer: "+err.Error())
		return
	}
	for i := range known {
		if known[i].Err == nil {
			c.largest = max(c.largest, int(known[i].Limit()))
		}
		c.topic(ctx, &known[i], traffic[known[i].Name])
	}
}

// cluster judges what is set for all topics, as far as the brokers tell.
func (c *kafkaCheck) cluster(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	kv, err := kafka.BrokerSettings(ctx, c.cl, c.broker, "auto.create.topics.enable", "socket.request.max.bytes")
	if err != nil {
		c.add("broker settings", OK, fmt.Sprintf("not checked, because the brokers do not report their settings (%v); walpost run does not need them", err))
		return
	}
	c.brokerSettings(kv)
}
