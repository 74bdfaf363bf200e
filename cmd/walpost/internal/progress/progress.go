// Package progress shows how far a command is.
package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// A Meter has the last line of the output. On a terminal the line is written over, and elsewhere each one is a line of its own.
// What is written through it otherwise, such as the log, goes above it.
type Meter struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	shown    bool

	step        string    // of the newest Progress
	began, told time.Time // the step, and when a line was shown
}

// NewMeter returns a meter that writes to out.
func NewMeter(out io.Writer) *Meter { return &Meter{out: out, terminal: Terminal(out)} }

// Terminal reports whether w is a terminal. Colours in a file or a pipe are noise.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Show replaces the last line.
func (m *Meter) Show(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.terminal {
		fmt.Fprintf(m.out, "\r\x1b[K%s", text)
		m.shown = true
		return
	}
	fmt.Fprintln(m.out, text)
}

// End leaves the last line as it is.
func (m *Meter) End() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shown {
		fmt.Fprintln(m.out)
		m.shown = false
	}
}

func (m *Meter) Write(b []byte) (int, error) {
	m.End()
	return m.out.Write(b)
}

// Say prints a line that stays.
func (m *Meter) Say(text string) { fmt.Fprintln(m, text) }

// Progress shows from time to time how far a step is. total may be an estimate. It must be called by one goroutine at a time.
func (m *Meter) Progress(step string, done, total int64) {
	now, pause := time.Now(), 10*time.Second
	if step != m.step {
		m.step, m.began, m.told = step, now, now
	}
	if m.terminal {
		pause = time.Second
	}
	if now.Sub(m.told) < pause {
		return
	}
	m.told = now
	rate := float64(done) / now.Sub(m.began).Seconds()
	text := fmt.Sprintf("%s: %d, %.0f/s", step, done, rate)
	if total >= done {
		left := time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second)
		text = fmt.Sprintf("%s: %d of about %d, %.0f/s, %s left", step, done, total, rate, left)
	}
	m.Show(text)
}
