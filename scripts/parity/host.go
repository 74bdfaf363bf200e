//go:build linux || darwin

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// A host stands where testenv wants a test: this program is none.
type host struct {
	testing.TB // nil: nothing else of it is called
	mu         sync.Mutex
	err        error
	cleanups   []func()
}

var errHost = errors.New("testenv gave up")

func (h *host) Helper()                  {}
func (h *host) Name() string             { return "parity" }
func (h *host) Context() context.Context { return context.Background() }
func (h *host) Failed() bool             { return h.get() != nil }

func (h *host) Cleanup(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleanups = append(h.cleanups, f)
}

func (h *host) get() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *host) Error(args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = errors.Join(h.err, errors.New(fmt.Sprint(args...)))
}

func (h *host) Errorf(format string, args ...any) { h.Error(fmt.Sprintf(format, args...)) }
func (h *host) Fatal(args ...any)                 { h.Error(args...); panic(errHost) }
func (h *host) Fatalf(format string, args ...any) { h.Errorf(format, args...); panic(errHost) }
func (h *host) Skip(args ...any)                  { h.Fatal(args...) }
func (h *host) Skipf(format string, args ...any)  { h.Fatalf(format, args...) }
func (h *host) Log(args ...any)                   { fmt.Fprintln(os.Stderr, args...) }
func (h *host) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (h *host) cleanup() {
	for i := len(h.cleanups) - 1; i >= 0; i-- {
		h.cleanups[i]()
	}
	h.cleanups = nil
}
