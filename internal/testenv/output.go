package testenv

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// Output keeps what a program or a logger writes, and may be read meanwhile. The zero value is empty.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
	path string // of File
}

// File returns a file for the output of a program. Whatever the program has written before a call of String is in the text. A program
// with the Output itself writes to a pipe, and the text lacks for a moment what it has written.
func (o *Output) File(t testing.TB) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "output")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	o.path = f.Name()
	return f
}

// Write appends p. It never fails.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String is all that was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.path != "" {
		text, _ := os.ReadFile(o.path) // the test may have removed it
		return string(text)
	}
	return o.text.String()
}

// Wait returns the first line that has text in it, as soon as it is written.
func (o *Output) Wait(t testing.TB, text string) string {
	t.Helper()
	for limit := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		for line := range strings.Lines(o.String()) {
			if strings.Contains(line, text) {
				return line
			}
		}
		if time.Now().After(limit) {
			t.Fatalf("%q was not written in 2 minutes; this was:\n%s", text, o)
		}
	}
}

// Page is the address of walpost's HTTP server as its log names it, or "" before it listens.
func (o *Output) Page() string {
	for line := range strings.Lines(o.String()) {
		var l struct{ URL, Message string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Message == "http listens" {
			return strings.TrimSuffix(l.URL, "/")
		}
	}
	return ""
}
