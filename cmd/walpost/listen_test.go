package main

import (
	"net"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/walpost/walpost/internal/fault"
)

// A halted walpost keeps its address until halt_linger is over, and the hint of a halt says to start walpost again.
func TestAnAddressInUseMayBelongToAHaltedWalpost(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, _, err = serveHTTP(httpConfig{Listen: l.Addr().String()}, nil, prometheus.NewRegistry(), zerolog.Nop())
	if hint := fault.Hint(err); !strings.Contains(hint, "a halted walpost that waits for halt_linger: stop that process first") {
		t.Errorf("%v: %q", err, hint)
	}
}
