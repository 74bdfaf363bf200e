package badevents

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/pump"
	"github.com/walpost/walpost/internal/wait"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
)

// Config is what the commands work with.
type Config struct {
	// Name and Database are of the relay whose events the commands take. Name is "" if it is not known.
	Name, Database string

	Kafka   sink.Config // its DeadLetters is the dead letter topic
	Parking string      // the topic of parked events
	Router  *router.Router
	Produce func(writes bool) // before the Router makes records: whether they are written
	// Consumers says that the dead letter topic is one of consumers (inbox/consumer). Then the commands take the events of every
	// consumer group, and need no Name, Database, Parking, Router and Produce.
	Consumers bool
	Version   string // of walpost, for the letters
	// Say tells the user something in one line. Progress says how far a step is.
	Say      func(text string)
	Progress func(step string, done, total int64)
}

// Topics are the dead letter topic and the parked event topic, for one command. It belongs to one goroutine.
type Topics struct {
	Config
	Dead   *Letters
	Parked *Parked

	client *kgo.Client
	dials  kafka.Dials
	places map[string]kafka.Topic // that a retry of consumers' letters delivers to
}

// Open reads the topics.
func Open(ctx context.Context, cfg Config) (*Topics, error) {
	cfg.Kafka.Bury, cfg.Kafka.Logger = false, slog.New(slog.DiscardHandler)
	t := &Topics{Config: cfg}
	var err error
	if t.client, err = cfg.Kafka.NewClient(&t.dials); err != nil {
		return nil, err
	}
	telling := func(topic string) func(done, total int64) {
		return func(done, total int64) { cfg.Progress("reading topic "+topic, done, total) }
	}
	t.Dead = NewLetters(t.client, cfg.Kafka.DeadLetters, telling(cfg.Kafka.DeadLetters))
	t.Parked = NewParked(t.client, cfg.Parking, telling(cfg.Parking))
	if cfg.Consumers {
		t.Dead = newLetters(t.client, cfg.Kafka.DeadLetters, deadletter.NewConsumedFold, telling(cfg.Kafka.DeadLetters))
		t.Dead.consumers, t.Parked.Missing = true, true
	}
	if err = t.Dead.Read(ctx); err == nil && !cfg.Consumers {
		if err = t.Parked.Read(ctx); kafka.Denied(err) { // who parks nothing may have no right on the topic
			cfg.Say(fmt.Sprintf("parked events are left out: %v. %s", err, fault.Hint(err)))
			t.Parked.Missing, err = true, nil
		}
	}
	if err == nil {
		err = errors.Join(t.Dead.owned(), t.Parked.owned())
	} else {
		err = t.dials.Explain(err)
	}
	if err != nil {
		t.client.Close()
		return nil, err
	}
	return t, nil
}

// Close frees the connections.
func (t *Topics) Close() { t.client.Close() }

const (
	// others is how long a command waits for another one that was changing the topic. That one looks
	// at the topic every second (pump.Every) while it waits for the brokers.
	others = 5 * time.Second
	// grace is how long an interrupted command waits for the answers to what it has sent.
	grace = 5 * time.Second
)

// errOther ends a command because a later one has begun.
var errOther = errors.New("another walpost dead retry or drop has begun, so this command stops. Everything that this command delivered or dropped is marked. Run it again for the other events when the newer command has ended")

// A change is a command that changes the topic. Only the newest one works: it says in the topic that
// it begins, and waits until the former ones have said that they ended. A former one that was killed
// says nothing, so the wait is bounded.
type change struct {
	*Topics
	token string // "" until the command has begun, and if it leaves the dead letter topic alone
	// Each record is sent with what its end leads to. The error is why the brokers refused the record.
	pump.Pump[func(refused error) error]
}

// writing runs work, which sends records. After an error, or when ctx has ended, it waits for what was sent, so that what is
// delivered gets its mark, and gives up the rest.
func (t *Topics) writing(ctx context.Context, work func(c *change) error) error {
	to, err := sink.Open(t.Kafka)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		_ = to.Close(ctx) // what does not end in time ends with the process
	}()
	c := &change{Topics: t}
	c.Pump = pump.Pump[func(error) error]{
		Sink: to, Say: t.Say, Events: chunkEvents, Bytes: chunkBytes, Look: c.newest,
		Ended: func(then func(error) error, a *cdc.Ack) error { return then(a.Err) },
	}
	if err = work(c); err == nil && ctx.Err() == nil {
		return nil
	}
	limit := grace
	if errors.Is(err, errOther) {
		limit = others / 2 // the later command waits for others
	}
	if stop := c.Drain(limit); ctx.Err() != nil {
		err = cmp.Or(stop, err)
	}
	return err
}

// change runs work, which changes the dead letter topic, while no other command does.
func (t *Topics) change(ctx context.Context, work func(c *change) error) error {
	token, begun := rand.Text(), false
	err := t.writing(ctx, func(c *change) error {
		if err := c.say(ctx, token, deadletter.Began); err != nil {
			return err
		}
		c.token, begun = token, true
		if err := c.alone(ctx); err != nil {
			return err
		}
		return work(c)
	})
	if !begun {
		return err
	}
	// Whoever waits for the end of this command begins after it, so it must deliver nothing more by now.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	return errors.Join(err, t.writing(after, func(c *change) error { return c.say(after, token, deadletter.Ended) }))
}

func (c *change) say(ctx context.Context, command string, state deadletter.State) error {
	m := deadletter.Mark{Token: command, State: state, Time: time.Now()}
	c.mark(m.Encode(c.Dead.Topic, []byte(command), 0), func() {})
	return c.settle(ctx)
}

// mark sends a record that the command can't do without. done is called when the brokers have it.
func (c *change) mark(rec *cdc.Record, done func()) {
	c.Send(rec, func(refused error) error {
		if refused != nil {
			return fmt.Errorf("write a mark to topic %s: %w", rec.Topic, refused)
		}
		done()
		return nil
	})
}

// settle waits until everything that was sent has ended, and what its end sends.
func (c *change) settle(ctx context.Context) error { return c.Wait(ctx, time.Time{}, c.Landed) }

// alone waits until no other command changes the topic.
func (c *change) alone(ctx context.Context) error {
	began, said := time.Now(), false
	for {
		if err := c.newest(ctx); err != nil {
			return err
		}
		working := slices.DeleteFunc(slices.Clone(c.Dead.Fold.Working), func(token string) bool { return token == c.token })
		switch {
		case len(working) == 0:
			return nil
		case time.Since(began) > others:
			for _, token := range working { // it was killed
				if err := c.say(ctx, token, deadletter.Ended); err != nil {
					return err
				}
			}
			return nil
		case !said:
			c.Say(fmt.Sprintf("another walpost dead retry or drop has not ended. If it is running, it stops now. If it was killed, this command continues after %s", others))
			said = true
		}
		if !wait.For(ctx, pump.Every/5) {
			return context.Cause(ctx)
		}
	}
}

// newest reads on, and returns errOther if a later command has begun.
func (c *change) newest(ctx context.Context) error {
	if c.token == "" {
		return nil
	}
	if err := c.Dead.Read(ctx); err != nil {
		return err
	}
	if c.Dead.Fold.Newest != c.token {
		return errOther
	}
	return nil
}
