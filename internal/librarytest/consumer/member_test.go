//go:build linux || darwin

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
)

// A memberConfig is what a process needs to be a member of the group.
type memberConfig struct {
	Brokers                       []string
	Group, Topic, Dead, DSN, User string
	Number                        int    // of the process, in the effects
	Batches                       bool   // whether it handles messages by BatchHandler, or by Handler
	Seed                          uint64 // of what its handlers do
}

func (cfg memberConfig) run(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return err
	}
	config.ConnConfig.User = cfg.User
	config.ConnConfig.RuntimeParams["application_name"] = "member"
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	h := &handlers{memberConfig: cfg, db: inbox.Pgx(pool)}
	c := consumer.Config{
		Brokers: cfg.Brokers, Group: cfg.Group, Topics: []string{cfg.Topic}, DeadLetterTopic: cfg.Dead,
		HandlerTimeout: 3 * time.Second, BackoffMin: 10 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
		ClientOptions: []kgo.Opt{
			kgo.SessionTimeout(3 * time.Second), kgo.HeartbeatInterval(200 * time.Millisecond), kgo.Balancers(balancer{kgo.CooperativeStickyBalancer()}),
		},
		Logger: slog.New(slog.DiscardHandler),
	}
	if cfg.Batches {
		c.BatchHandler = h.handle
	} else {
		c.Handler = func(ctx context.Context, m inbox.Message) error { return h.handle(ctx, []inbox.Message{m}) }
	}
	member, err := consumer.New(c)
	if err != nil {
		return err
	}
	if err := member.Run(ctx); err != nil && !errors.As(err, new(*consumer.UncommittedError)) {
		return err
	}
	return nil
}

// A balancer prints a line for each rebalance. One member of a group balances.
type balancer struct{ kgo.GroupBalancer }

func (b balancer) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer, map[string]struct{}, error) {
	fmt.Println("rebalance")
	return b.GroupBalancer.MemberBalancer(members)
}

// handlers write the effects of messages, and misbehave. They print a line for each thing that the test counts.
type handlers struct {
	memberConfig
	db      *inbox.DB[pgx.Tx]
	delayed sync.Map // the ids of the events that were slow here already
}

// handle handles messages. A member without batches gives it one.
func (h *handlers) handle(ctx context.Context, batch []inbox.Message) (err error) {
	began := false
	defer func() {
		if began {
			fmt.Println("end")
		}
	}()
	known := map[int64]bool{} // offsets of messages whose events were processed before
	for _, m := range batch {
		known[m.Offset] = true
	}
	write := func(ctx context.Context, tx pgx.Tx, messages []inbox.Message) error {
		for _, m := range messages {
			known[m.Offset] = false
		}
		err := h.insert(ctx, tx, messages)
		if !began {
			began = true
			fmt.Println("begin")
		}
		time.Sleep(5 * time.Millisecond)
		for _, m := range messages {
			if err == nil {
				err = h.misbehave(ctx, m)
			}
		}
		return err
	}
	if h.Batches {
		err = inbox.BatchHandler(h.db, write)(ctx, batch)
	} else {
		err = inbox.Handler(h.db, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error { return write(ctx, tx, []inbox.Message{m}) })(ctx, batch[0])
	}
	if err == nil {
		for _, m := range batch {
			if known[m.Offset] {
				fmt.Printf("known %d %d\n", m.Partition, m.Offset)
			}
		}
	}
	return err
}

func (h *handlers) insert(ctx context.Context, tx pgx.Tx, messages []inbox.Message) error {
	var keys, values []string
	var offsets []int64
	for _, m := range messages {
		keys, values, offsets = append(keys, string(m.Key)), append(values, string(m.Value)), append(offsets, m.Offset)
	}
	_, err := tx.Exec(ctx, `INSERT INTO effects (key, n, partition, record, process)
		SELECT key, n::int, $4, record, $5 FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS m (key, n, record, place) ORDER BY place`,
		keys, values, offsets, messages[0].Partition, h.Number)
	return err
}

// misbehave does what becomes of an event by the seed, after its effect was written. Each attempt that is the first one fails, and an
// event is delayed once in each process.
func (h *handlers) misbehave(ctx context.Context, m inbox.Message) error {
	hash := fnv.New64a()
	_, _ = hash.Write(strconv.AppendUint([]byte(m.ID+" "), h.Seed, 10))
	switch fate := hash.Sum64() % 1000; {
	case fate < 10 && m.Attempt == 1:
		fmt.Println("panic")
		panic("a handler")
	case fate >= 10 && fate < 20 && m.Attempt == 1:
		fmt.Println("error")
		return errBroken
	case fate >= 20 && fate < 72:
		if _, again := h.delayed.LoadOrStore(m.ID, true); again {
			return nil
		}
		if fate < 22 { // until its time is over
			fmt.Println("hang")
			<-ctx.Done()
			return ctx.Err()
		}
		fmt.Println("slow")
		time.Sleep(time.Duration(fate*2) * time.Millisecond)
	}
	return nil
}
