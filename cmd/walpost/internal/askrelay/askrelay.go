// Package askrelay asks a relay that runs for what its HTTP server says.
package askrelay

import (
	"context"
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

// Client connects to the relay that listens at the address, whatever host a URL names. An address without a host means this
// machine.
func Client(listen string) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, listen)
		},
	}}
}

// Get asks a relay. The relay answers to the name localhost whatever its address is. An error is short: it says why there is no answer.
func Get(ctx context.Context, client *http.Client, path string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := client.Do(req)
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
