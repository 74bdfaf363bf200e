package main

import (
	"fmt"
	"io"
	"time"
)

// A meter tells how far a long command is: on a terminal by a line that changes, elsewhere by a line
// from time to time.
type meter struct {
	*progressLine
	step  string
	began time.Time // of the step
	told  time.Time
}

func newMeter(w io.Writer) *meter { return &meter{progressLine: newProgressLine(w)} }

// say prints a line that stays.
func (m *meter) say(text string) { fmt.Fprintln(m.progressLine, text) }

// progress says how far a step is. total may be an estimate.
func (m *meter) progress(step string, done, total int64) {
	if step != m.step {
		m.step, m.began, m.told = step, time.Now(), time.Now()
	}
	pause := 10 * time.Second
	if m.terminal {
		pause = time.Second
	}
	now := time.Now()
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
	m.show(text)
}
