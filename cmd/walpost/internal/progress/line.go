// Package progress shows on a person's terminal how far a command is.
package progress

import (
	"fmt"
	"io"
	"sync"
)

// A Line is the last line of the output. On a terminal it is written over; elsewhere each one is a line. What is
// written through it otherwise, the log, goes above it.
type Line struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	shown    bool
}

// NewLine returns a line of the output. terminal says whether it can be written over.
func NewLine(out io.Writer, terminal bool) *Line { return &Line{out: out, terminal: terminal} }

// Show replaces the line.
func (p *Line) Show(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", text)
		p.shown = true
		return
	}
	fmt.Fprintln(p.out, text)
}

// End leaves the last line as it is.
func (p *Line) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprintln(p.out)
		p.shown = false
	}
}

func (p *Line) Write(b []byte) (int, error) {
	p.End()
	return p.out.Write(b)
}
