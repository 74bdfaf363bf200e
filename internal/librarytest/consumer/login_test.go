//go:build linux || darwin

package consumer_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/internal/testenv"
)

func loginAs(user, password string) kgo.Opt {
	return kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism())
}

// runUntilItEnds runs a consumer of the topic a until it ends by itself, or for no longer than patience.
func runUntilItEnds(t *testing.T, brokers []string, opts ...kgo.Opt) error {
	t.Helper()
	c, err := consumer.New(consumer.Config{
		Brokers: brokers, Group: "g", Topics: []string{"a"}, ClientOptions: opts, Logger: slog.New(slog.DiscardHandler),
		Handler: func(context.Context, inbox.Message) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = c.Run(ctx)
	if c.Ready() {
		t.Error("it is ready")
	}
	if ctx.Err() != nil {
		t.Error("it does not end by itself")
	}
	return err
}

// A login that is refused ends the first start. A consumer waits for brokers that cannot be reached, and
// once it was let in, it waits for its login, too.
func TestARefusedLoginEndsTheFirstStart(t *testing.T) {
	refused := func(t *testing.T, err error) *consumer.LoginError {
		t.Helper()
		login, ok := errors.AsType[*consumer.LoginError](err)
		if !ok {
			t.Fatalf("Run returned %v", err)
		}
		return login
	}
	authority := testenv.NewAuthority(t)
	cert, _, _ := authority.Pair("broker")
	roots := x509.NewCertPool()
	roots.AddCert(authority.Cert)

	k, asked := testenv.KafkaWithACLs(t, map[string]string{"service": "right"}, map[string]string{"super.users": "User:ANONYMOUS;User:service"})
	t.Run("a wrong password after a right one", func(t *testing.T) { waitsForItsLogin(t, k, asked) })
	t.Run("a wrong password", func(t *testing.T) {
		if err := refused(t, runUntilItEnds(t, []string{asked}, loginAs("service", "wrong"))); !errors.Is(err, kerr.SaslAuthenticationFailed) {
			t.Error(err)
		}
	})
	t.Run("a mechanism that the broker lacks", func(t *testing.T) {
		mechanism := scram.Auth{User: "service", Pass: "right"}.AsSha256Mechanism()
		if err := refused(t, runUntilItEnds(t, []string{asked}, kgo.SASL(mechanism))); !errors.Is(err, kerr.UnsupportedSaslMechanism) {
			t.Error(err)
		}
	})
	t.Run("a wrong password, and a broker that is down", func(t *testing.T) {
		for _, brokers := range [][]string{{asked, closedPort(t)}, {closedPort(t), asked}} {
			refused(t, runUntilItEnds(t, brokers, loginAs("service", "wrong")))
		}
	})
	t.Run("TLS on a port that has none", func(t *testing.T) {
		refused(t, runUntilItEnds(t, []string{speaks(t, "220 mail.example.com ready\r\n")}, kgo.DialTLSConfig(&tls.Config{})))
	})
	t.Run("an unknown authority", func(t *testing.T) {
		k := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}}))
		if err := refused(t, runUntilItEnds(t, k.ListenAddrs(), kgo.DialTLSConfig(&tls.Config{}))); !errors.As(err, new(x509.UnknownAuthorityError)) {
			t.Error(err)
		}
	})
	t.Run("no certificate of the client", func(t *testing.T) {
		k := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"), kfake.TLS(&tls.Config{
			Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
		}))
		refused(t, runUntilItEnds(t, k.ListenAddrs(), kgo.DialTLSConfig(&tls.Config{RootCAs: roots})))
	})
}

// closedPort is an address at which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	return l.Addr().String()
}

// speaks is the address of a server that says a text, and waits for the end of the connection.
func speaks(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(text))
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	return l.Addr().String()
}

// One broker that accepts the login is enough, wherever it stands in the list.
func TestABrokerThatRefusesTheLoginDoesNotEndAStart(t *testing.T) {
	user := kfake.Superuser("PLAIN", "service", "right")
	accepts := testenv.FakeKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "a"), kfake.EnableSASL(), user).ListenAddrs()[0]
	refuses := testenv.FakeKafka(t, kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "service", "other")).ListenAddrs()[0]
	for _, brokers := range [][]string{{accepts, refuses}, {refuses, accepts}} {
		c, err := consumer.New(consumer.Config{
			Brokers: brokers, Group: "g", Topics: []string{"a"}, ClientOptions: []kgo.Opt{loginAs("service", "right")}, Logger: slog.New(slog.DiscardHandler),
			Handler: func(context.Context, inbox.Message) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		for limit := time.Now().Add(patience); !c.Ready() && len(done) == 0 && time.Now().Before(limit); {
			time.Sleep(5 * time.Millisecond)
		}
		if !c.Ready() {
			t.Errorf("brokers %v: it is not ready", brokers)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func waitsForItsLogin(t *testing.T, k *testenv.KafkaCluster, asked string) {
	topic := k.Topic(t, 1, nil)
	var mu sync.Mutex
	var conns []net.Conn
	var password atomic.Pointer[string]
	var refused atomic.Int64
	var reachable atomic.Bool
	change := func(to string) {
		password.Store(&to)
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		conns = nil
	}
	change("right")
	var handled atomic.Int64
	j := &testenv.Output{}
	c, err := consumer.New(consumer.Config{
		Brokers: []string{asked}, Group: "g", Topics: []string{topic}, Logger: slog.New(slog.NewTextHandler(j, nil)),
		Handler: func(context.Context, inbox.Message) error { handled.Add(1); return nil },
		ClientOptions: []kgo.Opt{
			kgo.HeartbeatInterval(100 * time.Millisecond), kgo.SessionTimeout(6 * time.Second), kgo.RetryTimeout(time.Second),
			kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.MetadataMinAge(20 * time.Millisecond),
			kgo.SASL(plain.Plain(func(context.Context) (plain.Auth, error) {
				if *password.Load() == "wrong" {
					refused.Add(1)
				}
				return plain.Auth{User: "service", Pass: *password.Load()}, nil
			})),
			kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
				if !reachable.Load() {
					return nil, &net.OpError{Op: "dial", Err: errBroken}
				}
				conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
				mu.Lock()
				defer mu.Unlock()
				conns = append(conns, conn)
				return conn, err
			}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	until := func(what string, f func() bool) {
		t.Helper()
		for limit := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
			select {
			case err := <-done:
				t.Fatalf("Run ended: %v\n%s", err, j)
			default:
			}
			if time.Now().After(limit) {
				t.Fatalf("not within %s: %s\n%s", patience, what, j)
			}
		}
	}
	time.Sleep(500 * time.Millisecond) // several attempts to connect fail
	reachable.Store(true)
	until("it is ready", c.Ready)
	change("wrong")
	until("it is refused and is not ready", func() bool { return refused.Load() > 5 && !c.Ready() })
	change("right")
	until("it is ready again", c.Ready)
	if err := k.Client(t).ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte("k"), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("1")}}}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	until("it handles a message", func() bool { return handled.Load() == 1 })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The member without partitions is ready, too.
func TestAMemberOfItsGroupIsReady(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	idle, err := consumer.New(w.config(nil))
	if err != nil {
		t.Fatal(err)
	}
	if idle.Ready() || idle.Stats().Joined {
		t.Error("it is ready before Run")
	}
	one := w.start(w.config(nil))
	two := w.start(w.config(nil))
	w.eventually("both members are ready", func() bool {
		return one.Ready() && two.Ready() && one.Stats().Joined && two.Stats().Joined && len(one.Stats().Partitions)+len(two.Stats().Partitions) == 1
	})
	if err := one.end(); err != nil {
		t.Error(err)
	}
	if one.Ready() || one.Stats().Joined {
		t.Error("it is ready after Run")
	}
	w.eventually("the other has the partition", func() bool { return two.Ready() && len(two.Stats().Partitions) == 1 })
}

// A member whose group has forgotten it, and which cannot join, is not ready.
func TestAMemberThatItsGroupForgotIsNotReady(t *testing.T) {
	k := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	c, err := consumer.New(consumer.Config{
		Brokers: k.ListenAddrs(), Group: "g", Topics: []string{"a"}, Logger: slog.New(slog.DiscardHandler),
		Handler:       func(context.Context, inbox.Message) error { return nil },
		ClientOptions: []kgo.Opt{kgo.HeartbeatInterval(50 * time.Millisecond)},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	until := func(what string, f func() bool) {
		t.Helper()
		for limit := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("not within %s: %s", patience, what)
			}
		}
	}
	until("it is ready", c.Ready)
	var forgets atomic.Bool
	forgets.Store(true)
	k.ControlKey(kmsg.JoinGroup.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		if !forgets.Load() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp, nil, true
	})
	k.ControlKey(kmsg.Heartbeat.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		if !forgets.Load() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.UnknownMemberID.Code
		return resp, nil, true
	})
	until("it is not ready", func() bool { return !c.Ready() && !c.Stats().Joined })
	forgets.Store(false)
	until("it is ready again", c.Ready)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
