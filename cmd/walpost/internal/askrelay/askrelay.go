// Package askrelay asks a relay that runs for what its HTTP server says.
package askrelay

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/walpost/walpost/internal/command/statuspage"
)

// timeout is how long a relay may take for its answer. The answer is in its memory.
const timeout = 3 * time.Second

// maxAnswer is more than any answer has.
const maxAnswer = 16 << 20

// NoAddress says why a relay with this configuration cannot be asked, "" if it can. validate has seen the address.
func NoAddress(cfg statuspage.Config) (why string) {
	if _, port, _ := net.SplitHostPort(cfg.Listen); cfg.Off() || port == "0" {
		why = fmt.Sprintf("http.listen is %q, so the relay has no address to ask", cfg.Listen)
	}
	return why
}

// A Client asks the relay that a configuration is for.
type Client struct {
	http.Client
	cfg statuspage.Config
}

// NewClient makes a Client of the relay that listens at the address of the configuration. An address without a host means this
// machine. A certificate must be the one of the configuration, whatever name it has.
func NewClient(cfg statuspage.Config) *Client {
	to := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, cfg.Listen)
		},
	}
	if cfg.TLS != nil {
		to.TLSClientConfig = &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(c tls.ConnectionState) error { //nolint:gosec // it compares the whole certificate
			return isOf(cfg.TLS, c.PeerCertificates[0])
		}}
	}
	return &Client{http.Client{Timeout: timeout, Transport: to}, cfg}
}

// isOf compares a certificate with the one of a configuration.
func isOf(t *statuspage.TLS, presented *x509.Certificate) error {
	text, err := os.ReadFile(t.CertFile)
	if err != nil {
		return fmt.Errorf("http.tls.cert_file: %w", err)
	}
	if own, _ := pem.Decode(text); own == nil || !bytes.Equal(own.Bytes, presented.Raw) {
		return errors.New("its certificate is not the one in http.tls.cert_file")
	}
	return nil
}

// Get asks the relay. It answers to the name localhost whatever its address is. An error is short: it says why there is no answer.
func (c *Client) Get(ctx context.Context, path string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.cfg.URL("localhost")+path, nil)
	if err != nil {
		return 0, nil, err
	}
	if c.cfg.Username != "" {
		password, err := c.cfg.Password.Or(c.cfg.PasswordFile)
		if err != nil {
			return 0, nil, fmt.Errorf("http.password_file: %w", err)
		}
		req.SetBasicAuth(c.cfg.Username, password)
	}
	resp, err := c.Do(req)
	if err == nil {
		defer func() { _ = resp.Body.Close() }() // it was read
		body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	}
	var cause syscall.Errno
	switch {
	case err == nil:
		return resp.StatusCode, body, nil
	case errors.As(err, &cause): // without the address, which is said already
		return 0, nil, cause
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return 0, nil, fmt.Errorf("no answer within %s", timeout)
	}
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	return 0, nil, err
}
