package sink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const askTimeout = 10 * time.Second

func (s *Kafka) limitOf(topic string) int32 {
	if n, ok := s.limits.Load(topic); ok {
		return n.(int32)
	}
	return defaultLimit
}

// usable returns the number of a topic's partitions.
func usable(m *kmsg.MetadataResponseTopic) (int32, error) {
	if err := kerr.ErrorForCode(m.ErrorCode); err != nil {
		return 0, err
	}
	if len(m.Partitions) == 0 {
		return 0, kerr.UnknownTopicOrPartition
	}
	return int32(len(m.Partitions)), nil
}

// fresh gives the topic another client of a kind, one that has nothing to do with the topic's past: the present one works with
// another limit, knows the topic as it was before it was created again, or can not produce any more. A topic that has no
// client of that kind yet gets its first one.
//
// The client's own way for the first two is to purge the topic. But a purge starts its sequence numbers anew under the same
// producer id and epoch, and a partition that still remembers a batch of the same numbers would acknowledge the next one as
// a duplicate without writing it (TestPurgeWouldLoseARecord). A new producer id has no past.
func (s *Kafka) fresh(t *topic, k kind) error {
	s.mu.Lock()
	c, old, gen := s.next[k], t.cl[k], s.gen
	s.mu.Unlock()
	usable := c != nil && c != old
	if usable {
		told, asked := c.told(t.name)
		usable = !asked || told == s.limitOf(t.name)
	}
	var made *client
	if !usable {
		var err error
		if made, err = s.newClient(k, gen); err != nil {
			return err
		}
		c = made
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		if made != nil {
			made.Close()
		}
		return errClosed
	}
	if made == nil && s.next[k] != c || made != nil && gen != s.gen {
		s.mu.Unlock()
		if made != nil {
			made.Close()
		}
		return s.fresh(t, k) // another topic's tender replaced c meanwhile, and may have closed it
	}
	unused := s.next[k]
	s.next[k], t.cl[k] = c, c
	c.topics++
	if old != nil {
		old.topics--
	}
	var end []*client
	for _, u := range []*client{unused, old} {
		if u != nil && u != c && u.topics == 0 && (len(end) == 0 || end[0] != u) {
			end = append(end, u)
		}
	}
	s.mu.Unlock()
	s.closeAll(end)
	return nil
}

// repair does what helps against err, if anything does, before the next attempt. Nothing is in flight for the topic.
func (s *Kafka) repair(t *topic, err error) {
	s.mu.Lock()
	c := t.through // which failed the records
	s.mu.Unlock()
	switch {
	case errors.Is(err, errStuck):
		return // abandon did
	case missing(err):
		s.moved(t, s.fresh(t, c.kind))
		return
	}
	if why := c.fatal(s.ctx); why != nil && s.ctx.Err() == nil {
		s.log.Debug().Err(why).Str("topic", t.name).Msg("the kafka client can not produce any more; replaced") // Stalled tells the reason
		s.moved(t, s.fresh(t, c.kind))
		return
	}
	c.ForceMetadataRefresh()
}

func (s *Kafka) moved(t *topic, err error) {
	if err != nil && s.ctx.Err() == nil {
		s.log.Error().Err(err).Str("topic", t.name).Msg("new kafka client")
	}
}

// describeTopics asks for topics without creating them. The answer has them in the order of the question.
func describeTopics(ctx context.Context, c *kgo.Client, topics ...string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	req.IncludeTopicAuthorizedOperations = true
	req.Topics = []kmsg.MetadataRequestTopic{} // not nil, which would be all
	for _, t := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(t)
		req.Topics = append(req.Topics, rt)
	}
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		return nil, err
	}
	by := map[string]kmsg.MetadataResponseTopic{}
	for _, rt := range resp.Topics {
		if rt.Topic != nil {
			by[*rt.Topic] = rt
		}
	}
	ordered := make([]kmsg.MetadataResponseTopic, len(topics))
	for i, t := range topics {
		rt, ok := by[t]
		if !ok {
			return nil, fmt.Errorf("the brokers did not answer for topic %s", t)
		}
		ordered[i] = rt
	}
	resp.Topics = ordered
	return resp, nil
}

// configsOf asks for named settings of a topic, or of what kind says. A missing one is not in the map.
func configsOf(ctx context.Context, c *kgo.Client, kind kmsg.ConfigResourceType, name string, keys ...string) (map[string]string, error) {
	all, errs, err := configsOfAll(ctx, c, kind, []string{name}, keys...)
	if err == nil {
		err = errs[name]
	}
	return all[name], err
}

// configsOfAll asks for named settings of several resources at once: the settings, or the refusal, of each.
func configsOfAll(ctx context.Context, c *kgo.Client, kind kmsg.ConfigResourceType, names []string, keys ...string) (map[string]map[string]string, map[string]error, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, name := range names {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName, r.ConfigNames = kind, name, keys
		req.Resources = append(req.Resources, r)
	}
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	all, errs := map[string]map[string]string{}, map[string]error{}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			errs[r.ResourceName] = err
			continue
		}
		kvs := map[string]string{}
		for _, kv := range r.Configs {
			if kv.Value != nil {
				kvs[kv.Name] = *kv.Value
			}
		}
		all[r.ResourceName] = kvs
	}
	return all, errs, nil
}

// topicLimit is the topic's max.message.bytes, as the client may use it. Without the right to describe it is the default.
// Only errors of the way to the brokers are errors.
func topicLimit(ctx context.Context, c *kgo.Client, topic string) (int32, error) {
	kv, err := configsOf(ctx, c, kmsg.ConfigResourceTypeTopic, topic, "max.message.bytes")
	if err != nil {
		var refused *kerr.Error
		if errors.As(err, &refused) {
			return defaultLimit, nil
		}
		return 0, err
	}
	return int32(limitOf(kv)), nil
}

// limitOf reads a topic's max.message.bytes. A broker that does not say is as one that does not give the right to describe.
func limitOf(kv map[string]string) int {
	n, err := strconv.Atoi(kv["max.message.bytes"])
	if err != nil {
		return defaultLimit
	}
	return min(max(n, minLimit), maxWrite)
}

// createTopic makes a topic. One that is there already is no error.
func createTopic(ctx context.Context, c *kgo.Client, name string, how Topics, configs map[string]string) error {
	_, err := createTopicReq(ctx, c, name, how, configs, false)
	return err
}

// createTopicReq makes a topic, or with dry only asks whether it could be made. The answer has what it gets, where the
// brokers tell; one that is there already is no error.
func createTopicReq(ctx context.Context, c *kgo.Client, name string, how Topics, configs map[string]string, dry bool) (*kmsg.CreateTopicsResponseTopic, error) {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.ValidateOnly = dry
	req.TimeoutMillis = 10_000
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, -1, -1
	if how.Partitions > 0 {
		t.NumPartitions = int32(how.Partitions)
	}
	if how.ReplicationFactor > 0 {
		t.ReplicationFactor = int16(how.ReplicationFactor)
	}
	for k, v := range configs {
		kv := kmsg.NewCreateTopicsRequestTopicConfig()
		kv.Name, kv.Value = k, kmsg.StringPtr(v)
		t.Configs = append(t.Configs, kv)
	}
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, fmt.Errorf("the brokers did not answer for topic %s", name)
	}
	made := &resp.Topics[0]
	err = kerr.ErrorForCode(made.ErrorCode)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		if made.ErrorMessage != nil && *made.ErrorMessage != "" {
			err = fmt.Errorf("%w (%s)", err, *made.ErrorMessage)
		}
		return nil, err
	}
	return made, nil
}
