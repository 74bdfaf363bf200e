package badevents

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
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
	Version string // of walpost, for the letters
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
}

// Open reads the topics.
func Open(ctx context.Context, cfg Config) (*Topics, error) {
	cfg.Kafka.Bury, cfg.Kafka.Logger = false, zerolog.Nop()
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
	if err = t.Dead.Read(ctx); err == nil {
		if err = t.Parked.Read(ctx); kafka.Denied(err) { // who parks nothing may have no right on the topic
			cfg.Say(fmt.Sprintf("parked events are left out: %v. %s", err, fault.Hint(err)))
			t.Parked.Missing, err = true, nil
		}
	}
	if err == nil {
		err = errors.Join(t.Dead.Owned(), t.Parked.Owned())
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
	// at the topic every second while it waits for the brokers.
	others = 5 * time.Second
	look   = time.Second
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
	token   string      // "" if the command leaves the dead letter topic alone
	letters *sink.Kafka // for the dead letter topic
	events  *sink.Kafka // for all others; nil if the command delivers none

	sent uint32
	open map[uint32]func(err error) // what ends each record that was sent
	acks []cdc.Ack
	// broken is the refusal of a mark, which ends the command.
	broken error
	stall  string // the newest one that was said
}

// writer opens the sinks of a command.
func (t *Topics) writer(delivers bool) (c *change, err error) {
	c = &change{Topics: t, open: map[uint32]func(error){}}
	if c.letters, err = sink.Open(t.Kafka); err == nil && delivers {
		if c.events, err = sink.Open(t.Kafka); err != nil {
			c.close()
		}
	}
	return c, err
}

// change runs work, which changes the dead letter topic, while no other command does.
func (t *Topics) change(ctx context.Context, delivers bool, work func(c *change) error) (err error) {
	c, err := t.writer(delivers)
	if err != nil {
		return err
	}
	defer c.close()
	c.token = rand.Text()
	if err := c.say(ctx, c.token, deadletter.Began); err != nil {
		return err
	}
	if err = c.alone(ctx); err == nil {
		err = work(c)
	}
	if c.events != nil {
		c.closes(c.events) // whoever waits for the end of this command begins after it
	}
	clear(c.open)
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	return errors.Join(err, c.say(after, c.token, deadletter.Ended))
}

func (c *change) close() {
	c.closes(c.letters)
	if c.events != nil {
		c.closes(c.events)
	}
}

// closes gives up what is not delivered.
func (c *change) closes(s *sink.Kafka) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	_ = s.Close(ctx) // what does not end in time ends with the process
}

func (c *change) say(ctx context.Context, command string, state deadletter.State) error {
	m := deadletter.Mark{Token: command, State: state, Time: time.Now()}
	c.write(m.Encode(c.Dead.Topic, []byte(command), 0), nil)
	return c.settle(ctx)
}

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
		if !wait.For(ctx, look/5) {
			return context.Cause(ctx)
		}
	}
}

// newest reads on, and returns errOther if a later command has begun.
func (c *change) newest(ctx context.Context) error {
	if err := c.Dead.Read(ctx); err != nil {
		return err
	}
	if c.Dead.Fold.Newest != c.token {
		return errOther
	}
	return nil
}

// write sends a record to one of walpost's topics. ended, if not nil, is told that the brokers have
// it, or that they refused it for good.
func (c *change) write(rec *cdc.Record, ended func(err error)) { c.send(c.letters, rec, ended) }

func (c *change) send(to *sink.Kafka, rec *cdc.Record, ended func(err error)) {
	c.sent++
	c.open[c.sent] = ended
	to.Send(rec, cdc.Ticket{Row: c.sent})
}

// settle waits until everything that was sent has ended, and what its end sends. If ctx ends, it
// waits no longer than grace, and returns the error of ctx.
func (c *change) settle(ctx context.Context) error {
	var over <-chan time.Time
	done, err := ctx.Done(), error(nil)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		for _, s := range []*sink.Kafka{c.events, c.letters} {
			if s != nil {
				if err := c.collect(s); err != nil {
					return err
				}
			}
		}
		if len(c.open) == 0 {
			return err
		}
		var events <-chan struct{}
		if c.events != nil {
			events = c.events.Wake()
		}
		select {
		case <-events:
		case <-c.letters.Wake():
		case <-done:
			over, done, err = time.After(grace), nil, context.Cause(ctx)
		case <-over:
			return err
		case <-tick.C:
			if err := c.waiting(ctx); err != nil {
				return err
			}
		}
	}
}

func (c *change) collect(s *sink.Kafka) error {
	c.acks = s.Acks(c.acks[:0])
	for i := range c.acks {
		a := &c.acks[i]
		ended := c.open[a.Ticket.Row]
		delete(c.open, a.Ticket.Row)
		if a.Err != nil {
			s.PassOver(a.Topic, nil)
		}
		if ended != nil {
			ended(a.Err)
		} else if a.Err != nil {
			c.broken = a.Err
		}
	}
	if c.broken != nil {
		return fmt.Errorf("write a mark: %w", c.broken)
	}
	return nil
}

// waiting says what the brokers keep from going on, and looks whether another command has begun.
func (c *change) waiting(ctx context.Context) error {
	for _, s := range []*sink.Kafka{c.events, c.letters} {
		if s == nil {
			continue
		}
		if why := s.Stalled(); why != nil && why.Error() != c.stall {
			c.stall = why.Error()
			c.Say("waiting: " + c.stall)
		}
	}
	if c.token == "" || c.Dead.Fold.Newest != c.token || ctx.Err() != nil {
		return nil // this command has not begun, or it ends
	}
	return c.newest(ctx)
}
