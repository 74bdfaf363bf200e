//go:build linux || darwin

package parity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/convert"
)

// Relay runs cases on walpost, each with a checkpoint of its own and, unless Brokers is set, a Kafka of its own in this process.
type Relay struct {
	Brokers []string // a real Kafka, for one case at a time: it has no topics but the case's, which are deleted after it
}

// Converted is a case's configuration as walpost's converter makes it of Debezium's; refused is why it does not.
func (c *Case) Converted(p *Place, slot string) (cfg walpost.Config, refused string, err error) {
	options, err := c.Base(p, slot)
	if err != nil {
		return cfg, "", err
	}
	text, err := json.Marshal(map[string]any{"name": c.Slug(), "config": options})
	if err != nil {
		return cfg, "", err
	}
	made, err := convert.Convert(text, convert.Options{Worker: []byte("bootstrap.servers=127.0.0.1:9092\n")})
	if err != nil {
		return cfg, err.Error(), nil
	}
	for _, f := range made.Report {
		if f.Verdict == convert.Unsupported {
			return cfg, f.Option + ": " + f.Text, nil
		}
	}
	cfg, err = decode(made.YAML)
	return cfg, "", err
}

// decode reads walpost.yaml as far as the converter writes it: cmd/walpost, which reads all of it, is a program.
func decode(text []byte) (cfg walpost.Config, err error) {
	cfg = walpost.DefaultConfig()
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return cfg, err
	}
	delete := func(n *yaml.Node, key string) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				n.Content = append(n.Content[:i], n.Content[i+2:]...)
				return
			}
		}
	}
	for _, section := range []string{"http", "log"} { // of the program
		delete(doc.Content[0], section)
	}
	dollars(doc.Content[0])
	b, err := yaml.Marshal(&doc)
	if err != nil {
		return cfg, err
	}
	dec := yaml.NewDecoder(strings.NewReader(string(b)))
	dec.KnownFields(true)
	if err := dec.Decode(&cfg); err != nil {
		return cfg, fmt.Errorf("%w in\n%s", err, text)
	}
	return cfg, nil
}

// dollars undoes $$, except in the two keys that are taken as they stand.
func dollars(n *yaml.Node) {
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && strings.HasPrefix(n.Content[i-1].Value, "route.topic.re") {
			continue
		}
		dollars(child)
	}
	if n.Kind == yaml.ScalarNode {
		n.Value = strings.ReplaceAll(n.Value, "$$", "$")
		if n.Value == "true" || n.Value == "false" { // a boolean in quotes is one, too
			n.Tag, n.Style = "", 0
		}
	}
}

// Run runs a case that was put into p. The error is of the run, not of the case.
func (w *Relay) Run(ctx context.Context, c *Case, p *Place, slot string) (o Outcome, err error) {
	cfg, refused, err := c.Converted(p, slot)
	if err != nil || refused != "" {
		return Outcome{Failure: refused, AtStart: true}, err
	}
	brokers := w.Brokers
	if brokers == nil {
		fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(Partitions),
			kfake.BrokerConfigs(map[string]string{"message.max.bytes": MaxMessage}))
		if err != nil {
			return o, err
		}
		defer fake.Close()
		brokers = fake.ListenAddrs()
	}
	dir, err := os.MkdirTemp("", "walpost-parity-")
	if err != nil {
		return o, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	cfg.Kafka.Brokers = brokers
	cfg.Kafka.Topics.Create = true
	cfg.Checkpoint = walpost.CheckpointConfig{Store: "file", Path: filepath.Join(dir, "checkpoint")}
	cfg.HaltLinger = 0
	cfg.Monitor.Interval = time.Hour
	relay, err := walpost.New(cfg)
	if err != nil {
		return Outcome{Failure: err.Error(), AtStart: true}, nil
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- relay.Run(running) }()
	ended := false
	for !ended {
		select {
		case err := <-done:
			if err == nil {
				return o, errors.New("walpost ended by itself")
			}
			o.Failure = err.Error()
			var misconfigured interface{ Misconfigured() bool }
			o.AtStart = errors.As(err, &misconfigured) && misconfigured.Misconfigured()
			ended = true
		case <-time.After(5 * time.Millisecond):
			if uint64(relay.Status().Safe) < p.End {
				continue
			}
			stop()
			if err := <-done; err != nil {
				return o, fmt.Errorf("walpost stops: %w", err)
			}
			ended = true
		case <-ctx.Done():
			st := relay.Status()
			return o, fmt.Errorf("%w: walpost is %s (%s), safe %s", context.Cause(ctx), st.State, st.Reason, st.Safe)
		}
	}
	records, topics, err := readTopics(ctx, brokers, "")
	if err != nil {
		return o, fmt.Errorf("read what walpost wrote: %w", err)
	}
	o.Records = records
	if w.Brokers != nil {
		err = deleteTopics(ctx, brokers, topics)
	}
	return o, err
}
