package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Package kadm creates topics and lists brokers. It describes no topics and no settings here: one topic that the user may
// not see would fail the answer for all of them, and kadm asks for every setting of a topic, with its history.

const (
	// MaxRequest is the largest request that a client sends. It is the default of the broker's socket.request.max.bytes: a
	// broker cuts the connection of a larger request.
	MaxRequest = 100 << 20
	// UsualLimit is the broker's default of max.message.bytes less what the client adds, as librdkafka and franz-go have it.
	UsualLimit = 1_000_012
	// LeastLimit is the lowest max.message.bytes that a client works with.
	LeastLimit = 512
)

// A Topic is what the brokers say of a topic.
type Topic struct {
	Name       string
	ID         [16]byte // zero before Kafka 2.8
	Partitions []kmsg.MetadataResponseTopicPartition
	Err        error // why the topic cannot be used; a topic without partitions does not exist yet

	Operations int32 // what the user may do, as the brokers write it; see Allows

	Settings map[string]string // those that were asked for; a broker may leave out some
	Refused  error             // why Settings is not known; not a *kerr.Error if the brokers did not answer
}

// Topics describes topics, in the order of names, and the given settings of those that can be used. It creates none. An error
// means that the brokers did not answer.
func Topics(ctx context.Context, cl *kgo.Client, names []string, settings ...string) ([]Topic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	req.IncludeTopicAuthorizedOperations = true
	req.Topics = []kmsg.MetadataRequestTopic{} // not nil, which would be all
	for _, name := range names {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, rt)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	by := map[string]*kmsg.MetadataResponseTopic{}
	for i := range resp.Topics {
		if rt := &resp.Topics[i]; rt.Topic != nil {
			by[*rt.Topic] = rt
		}
	}
	topics, there := make([]Topic, len(names)), []string(nil)
	for i, name := range names {
		rt := by[name]
		if rt == nil {
			return nil, fmt.Errorf("the brokers did not answer for topic %s", name)
		}
		t := Topic{Name: name, ID: rt.TopicID, Partitions: rt.Partitions, Err: kerr.ErrorForCode(rt.ErrorCode), Operations: rt.AuthorizedOperations}
		if t.Err == nil && len(t.Partitions) == 0 {
			t.Err = kerr.UnknownTopicOrPartition
		}
		if t.Err == nil {
			there = append(there, name)
		}
		topics[i] = t
	}
	if len(settings) == 0 || len(there) == 0 {
		return topics, nil
	}
	all, refused, err := describe(ctx, cl, kmsg.ConfigResourceTypeTopic, there, settings)
	for i := range topics {
		t := &topics[i]
		if t.Settings, t.Refused = all[t.Name], refused[t.Name]; err != nil {
			t.Refused = err
		}
	}
	return topics, nil
}

// TopicNames returns the names of all topics that the user may see, without the cluster's own.
func TopicNames(ctx context.Context, cl *kgo.Client) (names []string, err error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	for _, t := range resp.Topics {
		if t.Topic != nil && !t.IsInternal && t.ErrorCode == 0 {
			names = append(names, *t.Topic)
		}
	}
	slices.Sort(names)
	return names, nil
}

// DescribeTopic is Topics for one topic.
func DescribeTopic(ctx context.Context, cl *kgo.Client, name string, settings ...string) (*Topic, error) {
	topics, err := Topics(ctx, cl, []string{name}, settings...)
	if err != nil {
		return nil, err
	}
	return &topics[0], nil
}

// Limit is the topic's max.message.bytes, as a client may use it. It is the usual one if the brokers do not tell it.
func (t *Topic) Limit() int32 {
	n, err := strconv.Atoi(t.Settings["max.message.bytes"])
	if err != nil {
		return UsualLimit
	}
	return int32(min(max(n, LeastLimit), MaxRequest))
}

// Allows reports whether the user may do op with the topic. known is false if the brokers do not tell.
func (t *Topic) Allows(op kmsg.ACLOperation) (may, known bool) {
	const notTold = -1 << 31
	if t.Operations == notTold || t.Operations == 0 {
		return false, false
	}
	return t.Operations&(1<<uint(op)) != 0, true
}

// BrokerSettings asks a broker for some of its settings. It may leave out some.
func BrokerSettings(ctx context.Context, cl *kgo.Client, broker int32, settings ...string) (map[string]string, error) {
	name := strconv.Itoa(int(broker))
	all, refused, err := describe(ctx, cl, kmsg.ConfigResourceTypeBroker, []string{name}, settings)
	if err == nil {
		err = refused[name]
	}
	return all[name], err
}

// describe asks for settings of several resources at once: the settings, or the refusal, of each.
func describe(ctx context.Context, cl *kgo.Client, kind kmsg.ConfigResourceType, names, settings []string) (map[string]map[string]string, map[string]error, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, name := range names {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName, r.ConfigNames = kind, name, settings
		req.Resources = append(req.Resources, r)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, nil, err
	}
	all, refused := map[string]map[string]string{}, map[string]error{}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			refused[r.ResourceName] = err
			continue
		}
		kv := map[string]string{}
		for _, c := range r.Configs {
			if c.Value != nil {
				kv[c.Name] = *c.Value
			}
		}
		all[r.ResourceName] = kv
	}
	return all, refused, nil
}

// A NewTopic is a topic to create. Partitions and Replicas below 1 leave the number to the brokers.
type NewTopic struct {
	Name                 string
	Partitions, Replicas int
	Settings             map[string]string
}

// Create creates the topic. With dryRun it only asks whether the topic could be created. The answer says what the topic gets, if
// the brokers tell. A topic that is there already is no error.
func (t *NewTopic) Create(ctx context.Context, cl *kgo.Client, dryRun bool) (made kadm.CreateTopicResponse, err error) {
	adm := kadm.NewClient(cl)
	adm.SetTimeoutMillis(10_000)
	create := adm.CreateTopics
	if dryRun {
		create = adm.ValidateCreateTopics
	}
	partitions, replicas := int32(-1), int16(-1)
	if t.Partitions > 0 {
		partitions = int32(t.Partitions)
	}
	if t.Replicas > 0 {
		replicas = int16(t.Replicas)
	}
	settings := map[string]*string{}
	for k, v := range t.Settings {
		settings[k] = &v
	}
	answers, err := create(ctx, partitions, replicas, settings, t.Name)
	if err != nil {
		return made, err
	}
	made, ok := answers[t.Name]
	switch {
	case !ok:
		return made, fmt.Errorf("the brokers did not answer for topic %s", t.Name)
	case made.Err == nil || errors.Is(made.Err, kerr.TopicAlreadyExists):
		return made, nil
	case made.ErrMessage != "":
		return made, fmt.Errorf("%w (%s)", made.Err, made.ErrMessage)
	}
	return made, made.Err
}

// Dials is a hook that remembers how the newest connection attempt ended, because the dialer's own error says more than
// the client's.
type Dials struct{ err atomic.Pointer[error] }

// Last is the error of the newest attempt, or nil.
func (d *Dials) Last() error {
	if p := d.err.Load(); p != nil {
		return *p
	}
	return nil
}

// Explain adds the dialer's own error to err, if there is one that err does not have.
func (d *Dials) Explain(err error) error {
	if why := d.Last(); why != nil && !errors.Is(err, why) {
		return fmt.Errorf("%w (%w)", err, why)
	}
	return err
}

// OnBrokerConnect is called by the client after each attempt.
func (d *Dials) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil {
		d.err.Store(nil)
	} else if !errors.Is(err, context.Canceled) && !errors.Is(err, errDeadline) { // neither says anything about the brokers
		d.err.Store(&err)
	}
}
