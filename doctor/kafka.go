package doctor

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/lib/topicname"
	"github.com/walpost/walpost/sink"
)

// topicTraffic is what is known of the records that go to a topic. The zero value says nothing.
type topicTraffic struct {
	largest   int       // bytes of the largest record, as sink.BatchBytes counts them
	newest    time.Time // the newest timestamp
	keyless   bool      // a record has no key
	partition int32     // the highest partition that a record asks for
}

// add takes a record into account.
func (t *topicTraffic) add(rec *cdc.Record) {
	t.largest = max(t.largest, sink.BatchBytes(rec))
	t.partition = max(t.partition, rec.Partition)
	t.keyless = t.keyless || rec.Key == nil
	if rec.Time.After(t.newest) {
		t.newest = rec.Time
	}
}

// expectation is what the database says of a run: the records for each topic.
type expectation struct {
	topics map[string]topicTraffic
	// Patterns are the names of the topics that rows go to, as in router.TopicPatterns.
	patterns []string
}

const (
	// askTimeout bounds one step of checkKafka, and topicsTimeout all steps after the brokers have answered.
	askTimeout    = 10 * time.Second
	topicsTimeout = 30 * time.Second
)

// checkKafka looks at the Kafka side of the conditions. cfg is valid, checkpoint is the topic of the checkpoints, or empty, and name is
// the relay's name. It changes nothing: it only asks whether topics could be created. It calls expected once it has looked at the brokers, also if
// it cannot reach them. Then it takes topicsTimeout at most.
func checkKafka(ctx context.Context, cfg sink.Config, checkpoint, name string, expected func() expectation) []Finding {
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
	names := slices.Sorted(maps.Keys(want.topics))
	c.ask(ctx, names, checkpoint)
	c.brokerSettings()
	c.idempotent(ctx)
	if len(names) == 0 && len(want.patterns) > 0 {
		c.unnamed(ctx, checkpoint, want.patterns)
	}
	for _, topic := range names {
		c.topic(ctx, topic, want.topics[topic])
	}
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
		c.transactional(ctx, name, "with which the relay parks events", "park_key", "another policy than park_key in delivery.on_poison")
	}
	if cfg.TransactionalID != "" {
		c.transactional(ctx, cfg.TransactionalID, "with which the relay sends events", "exactly_once", "delivery.guarantee: at_least_once")
		c.transactionVersion(ctx)
	}
	return c.found
}

type kafkaCheck struct {
	cl    *kgo.Client
	cfg   sink.Config
	fixes kafkaFixes
	now   func() time.Time
	found []Finding

	// What the brokers say, by reach and ask.
	brokers     int   // of the cluster
	broker      int32 // one that answers
	caps        bool  // every broker that answers caps min.insync.replicas, see capsMinISR
	settings    map[string]string
	settingsErr error
	topics      map[string]*kafka.Topic // those that could be asked for
	topicsErr   error
	largest     int // max.message.bytes of the topics that rows go to
}

func (c *kafkaCheck) add(name string, verdict Verdict, why string, steps ...fix.Step) {
	c.found = append(c.found, Finding{Side: Kafka, Name: name, Verdict: verdict, Why: why, Fix: steps})
}

// ask asks the brokers once for their settings, and for all topics of the relay: those that rows go to, and its own.
func (c *kafkaCheck) ask(ctx context.Context, rows []string, checkpoint string) {
	names := append([]string{checkpoint}, rows...)
	if c.cfg.Bury {
		names = append(names, c.cfg.DeadLetters)
	}
	if c.cfg.Park || c.cfg.TransactionalID != "" {
		names = append(names, transactionState)
	}
	names = slices.DeleteFunc(append(names, c.cfg.Parking), func(n string) bool { return topicname.Check(n) != nil })
	slices.Sort(names)
	step, cancel := context.WithTimeout(ctx, askTimeout)
	c.settings, c.settingsErr = kafka.BrokerSettings(step, c.cl, c.broker, "auto.create.topics.enable", "socket.request.max.bytes", stateReplication)
	cancel()
	step, cancel = context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var all []kafka.Topic
	all, c.topicsErr = kafka.Topics(step, c.cl, slices.Compact(names), topicSettings...)
	c.topics = map[string]*kafka.Topic{}
	for i := range all {
		t := &all[i]
		if c.topics[t.Name] = t; t.Err == nil && slices.Contains(rows, t.Name) {
			c.largest = max(c.largest, int(t.Limit()))
		}
	}
}

// known is a topic that was asked for. It is nil if there was no answer, or if no topic can have the name; then there is a finding.
func (c *kafkaCheck) known(name, topic string, rename fix.Words) *kafka.Topic {
	if err := topicname.Check(topic); err != nil {
		c.add(name, Fail, err.Error(), rename)
	} else if c.topicsErr != nil {
		c.add(name, Fail, "the brokers do not answer: "+errorLine(c.topicsErr))
	}
	return c.topics[topic]
}
