//go:build linux || darwin

package parity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/command/convert"
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/internal/yamlfile"
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
	cfg = walpost.DefaultConfig()
	file := yamlfile.New("walpost.yaml", os.LookupEnv)
	file.Read(made.YAML, &cfg)
	if wrong := file.Check(nil); len(wrong) > 0 {
		return cfg, "", fmt.Errorf("%w in\n%s", wrong, made.YAML)
	}
	return cfg, "", nil
}

// Run runs a case that was put into p. The error is of the run, not of the case.
func (w *Relay) Run(ctx context.Context, c *Case, p *Place, slot string) (o Outcome, err error) {
	var schemas *registry
	if c.registered() {
		fake := httptest.NewServer(http.StripPrefix(ccompat, srfake.NewRegistry().Handler()))
		defer fake.Close()
		schemas = &registry{address: fake.Listener.Addr().String()}
		p.Registry = schemas.address
	}
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
	cfg.Checkpoint = statelog.StoreConfig{Store: "file", Path: filepath.Join(dir, "checkpoint")}
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
	o.Records = slices.DeleteFunc(records, func(r Record) bool { return c.messages() && isEnd(&r) })
	if schemas != nil {
		if err := schemas.tell(ctx, &o, "", ""); err != nil {
			return o, err
		}
	}
	if w.Brokers != nil {
		err = deleteTopics(ctx, brokers, topics)
	}
	return o, err
}
