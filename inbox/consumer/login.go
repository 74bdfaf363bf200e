package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/internal/lib/backoff"
)

// A LoginError says that no broker lets this client in: the password is wrong, for example, or one
// side does not trust the certificate of the other. Another attempt cannot help.
type LoginError struct{ Err error }

func (e *LoginError) Error() string {
	return "consumer: the brokers refuse the login: " + e.Err.Error()
}
func (e *LoginError) Unwrap() error { return e.Err }

// login ends a Consumer with a *LoginError if no broker lets it in. It returns when one does.
func (c *Consumer) login(ctx context.Context, refused context.CancelCauseFunc) {
	again := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for failures := 1; ctx.Err() == nil; failures++ {
		asking, cancel := context.WithTimeout(ctx, lagInterval)
		err := c.cl.Ping(asking) // each broker once
		cancel()
		if err == nil {
			return
		}
		if refusesLogin(err) {
			refused(&LoginError{err})
			return
		}
		select {
		case <-time.After(again.Pause(failures)):
		case <-ctx.Done():
		}
	}
}

// refusesLogin reports whether an error means that client and broker do not accept each other. A
// connection that just ends can mean it too, but a broker that restarts ends connections as well.
func refusesLogin(err error) bool {
	if errors.Is(err, kerr.SaslAuthenticationFailed) || errors.Is(err, kerr.UnsupportedSaslMechanism) {
		return true
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	alert, ok := errors.AsType[*net.OpError](err)
	return untrusted || ok && alert.Op == "remote error" // the broker does not accept our certificate
}
