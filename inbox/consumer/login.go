package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/lib/backoff"
)

// A LoginError means that a broker refuses this client, and that none of Config.Brokers accepts it:
// for example, the password is wrong, or one side doesn't trust the other's certificate. Retrying
// can't help. Brokers that don't answer don't count.
type LoginError struct{ Err error }

func (e *LoginError) Error() string {
	return "consumer: the brokers refuse the login: " + e.Err.Error()
}
func (e *LoginError) Unwrap() error { return e.Err }

// login ends a Consumer with a *LoginError if no broker lets it in. It returns when one does, or when ctx
// ends because the Consumer has joined its group.
func (c *Consumer) login(ctx context.Context, refused context.CancelCauseFunc) {
	again := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for failures := 1; ctx.Err() == nil; failures++ {
		accepted, err := c.ask(ctx)
		if accepted || ctx.Err() != nil { // the group may have let it in meanwhile
			return
		}
		if err != nil {
			refused(&LoginError{err})
			return
		}
		select {
		case <-time.After(again.Pause(failures)):
		case <-ctx.Done():
		}
	}
}

// ask asks each of Config.Brokers at the same time, and reports whether one accepts the login. If none does,
// the error is that of one that refuses it.
func (c *Consumer) ask(ctx context.Context) (accepted bool, refused error) {
	ctx, cancel := context.WithTimeout(ctx, lagInterval)
	defer cancel()
	seeds := c.cl.SeedBrokers()
	answers := make(chan error, len(seeds))
	for _, broker := range seeds {
		go func() {
			req := kmsg.NewPtrMetadataRequest()
			req.Topics = []kmsg.MetadataRequestTopic{} // not nil, which would be all
			_, err := broker.Request(ctx, req)
			answers <- err
		}()
	}
	for range seeds {
		err := <-answers
		if err == nil {
			return true, nil
		}
		if refusesLogin(err) {
			refused = err
		}
	}
	return false, refused
}

// refusesLogin reports whether an error means that client and broker do not accept each other. A
// connection that just ends can mean it too, but a broker that restarts ends connections as well.
func refusesLogin(err error) bool {
	if errors.Is(err, kerr.SaslAuthenticationFailed) || errors.Is(err, kerr.UnsupportedSaslMechanism) {
		return true
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err) // the port answers, but not with TLS
	alert, ok := errors.AsType[*net.OpError](err)
	return untrusted || noTLS || ok && alert.Op == "remote error" // the broker does not accept our certificate
}
