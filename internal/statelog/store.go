package statelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/topicname"
)

// A KafkaStore keeps checkpoint records in a compacted topic, of which only partition 0 is used: the newest record of a key counts, a
// null value removes the key. The topic is created when it is missing. Every error but *LostRecords can be tried again; none means
// "nothing there".
//
// A Save that returns an error may still take effect later, but never after a Save that was called later.
type KafkaStore struct {
	mu    sync.Mutex
	log   *Log
	known atomic.Bool // the topic is there, and the log open
	saves uint64      // so far
}

// NewKafkaStore makes a store in cfg.Topic. It does not wait for the brokers. It needs no right on a transactional id.
func NewKafkaStore(cfg Config) (*KafkaStore, error) {
	if err := topicname.Check(cfg.Topic); err != nil {
		return nil, fault.Config(fmt.Errorf("checkpoint.topic: %w", err), "")
	}
	cfg.Settings, cfg.TransactionalID, cfg.Codec = Checkpoints, "", kgo.NoCompression()
	return &KafkaStore{log: New(cfg)}, nil
}

// Close frees the connections.
func (k *KafkaStore) Close(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.log.Close(ctx)
}

// open opens the log where that is due.
func (k *KafkaStore) open(ctx context.Context) error {
	if k.known.Load() && k.log.Broken() == nil {
		return nil
	}
	_, err := k.log.Open(ctx, true)
	k.log.Unwritten() // of a Save that returned an error
	k.known.Store(err == nil)
	return err
}

// fail is an error of a step. The topic may have been deleted, so the next step looks.
func (k *KafkaStore) fail(step string, err error) error {
	k.known.Store(false)
	err = fmt.Errorf("%s checkpoint topic: %w", step, err)
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		err = fault.WithHint(err, "Start the brokers, or correct kafka.brokers and make sure that firewalls let this machine through.")
	}
	return fault.Retry(err)
}

// Load returns every record whose key starts with name + "/", as of some moment after the call began. A topic that was just created is
// empty; a topic that can not be read to its end is an error.
func (k *KafkaStore) Load(ctx context.Context, name string) (map[string][]byte, error) {
	k.mu.Lock()
	err := k.open(ctx)
	k.mu.Unlock() // a long reading keeps no Save waiting
	if err != nil {
		return nil, k.fail("read", err)
	}
	return k.read(ctx, name+"/", name)
}

// Peek is Load, but does not wait for the end of an open transaction. What is behind that is not in the answer, so there may be a newer record.
func (k *KafkaStore) Peek(ctx context.Context, name string) (map[string][]byte, error) {
	k.mu.Lock()
	err := k.open(ctx)
	k.mu.Unlock()
	if err != nil {
		return nil, k.fail("read", err)
	}
	records, _, err := fold(ctx, k.log, true, name+"/", "")
	if err != nil {
		err = k.fail("read", err)
	}
	return records, err
}

// Look is Load without an effect: a topic that does not exist is empty, and Look does not create it.
func (k *KafkaStore) Look(ctx context.Context, name string) (map[string][]byte, error) {
	return k.look(ctx, name+"/", name)
}

// LookNames is Look for all relays whose names start with prefix. It does not say what the topic has lost.
func (k *KafkaStore) LookNames(ctx context.Context, prefix string) (map[string][]byte, error) {
	return k.look(ctx, prefix, "")
}

func (k *KafkaStore) look(ctx context.Context, prefix, name string) (map[string][]byte, error) {
	if _, err := k.log.find(ctx, false); err != nil { // a Read would try again for a while
		return nil, k.fail("read", err)
	}
	return k.read(ctx, prefix, name)
}

func (k *KafkaStore) read(ctx context.Context, prefix, name string) (map[string][]byte, error) {
	records, _, err := fold(ctx, k.log, false, prefix, name)
	if err != nil && !errors.As(err, new(*LostRecords)) {
		err = k.fail("read", err)
	}
	return records, err
}

// fold returns the newest record of each key with a prefix. The error is a *LostRecords if those of the relay name may have been deleted;
// name is "" for no such question.
func fold(ctx context.Context, l *Log, stable bool, prefix, name string) (records map[string][]byte, at cdc.LogState, err error) {
	records = map[string][]byte{}
	at, err = l.read(ctx, 0, stable, func(r *kgo.Record) bool {
		switch {
		case !bytes.HasPrefix(r.Key, []byte(prefix)):
		case r.Value == nil:
			delete(records, string(r.Key))
		default:
			records[string(r.Key)] = bytes.Clone(r.Value) // the record is a part of all that was fetched
		}
		return true
	})
	switch {
	case err != nil:
		return nil, at, err
	case name != "" && at.Start > 0 && !held(name, records):
		return nil, at, &LostRecords{Topic: l.Topic, Name: name, Start: at.Start}
	}
	return records, at, nil
}

// Save returns when all in-sync replicas have the record.
func (k *KafkaStore) Save(ctx context.Context, key string, value []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.open(ctx); err != nil {
		return k.fail("write", err)
	}
	// When ctx ends, this Save is left behind in the log, where a later one queues behind it.
	k.saves++
	k.log.Append(&cdc.Record{Key: []byte(key), Value: value}, cdc.Ticket{Tx: k.saves})
	for {
		for _, a := range k.log.Appends(nil) {
			switch {
			case a.Ticket.Tx != k.saves:
			case a.Err != nil:
				return k.fail("write", a.Err)
			default:
				return nil
			}
		}
		if err := k.log.Broken(); err != nil {
			return k.fail("write", err)
		}
		select {
		case <-k.log.Wake():
		case <-ctx.Done():
			return k.fail("write", fmt.Errorf("not acknowledged: %w", context.Cause(ctx)))
		}
	}
}
