package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// A host stands for a test, for the test environment, where the suite is a program. Its log is kept until somebody asks for it.
type host struct {
	testing.TB
	name string
	out  func(line string) // nil is nowhere
	ctx  context.Context
	end  context.CancelFunc

	mu       sync.Mutex
	cleanups []func()
	lines    []string
	failures []string
}

// on runs f as a test would run. It returns what was logged and what failed.
func on(ctx context.Context, name string, out func(string), f func(testing.TB)) (lines, failures []string) {
	h := &host{name: name, out: out}
	h.ctx, h.end = context.WithCancel(ctx)
	h.aside(func() { f(h) })
	h.end()
	for {
		h.mu.Lock()
		if len(h.cleanups) == 0 {
			h.mu.Unlock()
			return h.lines, h.failures
		}
		last := h.cleanups[len(h.cleanups)-1]
		h.cleanups = h.cleanups[:len(h.cleanups)-1]
		h.mu.Unlock()
		h.aside(last)
	}
}

// aside runs f in a goroutine, which FailNow may end.
func (h *host) aside(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (h *host) note(to *[]string, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*to = append(*to, strings.TrimSuffix(text, "\n"))
	if h.out != nil {
		h.out(text)
	}
}

func (h *host) Helper()                    {}
func (h *host) Name() string               { return h.name }
func (h *host) Context() context.Context   { return h.ctx }
func (h *host) Log(args ...any)            { h.note(&h.lines, fmt.Sprintln(args...)) }
func (h *host) Logf(f string, args ...any) { h.note(&h.lines, fmt.Sprintf(f, args...)) }
func (h *host) Error(args ...any)          { h.note(&h.failures, fmt.Sprintln(args...)) }
func (h *host) Errorf(f string, args ...any) {
	h.note(&h.failures, fmt.Sprintf(f, args...))
}
func (h *host) FailNow() { runtime.Goexit() }
func (h *host) Fatal(args ...any) {
	h.Error(args...)
	h.FailNow()
}

func (h *host) Fatalf(f string, args ...any) {
	h.Errorf(f, args...)
	h.FailNow()
}

func (h *host) Failed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.failures) > 0
}

func (h *host) Cleanup(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleanups = append(h.cleanups, f)
}

func (h *host) TempDir() string {
	dir, err := os.MkdirTemp("", "walpost-faults-")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary folder
	return dir
}
