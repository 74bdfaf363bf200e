package progress

import (
	"fmt"
	"io"
	"time"
)

// A Meter tells how far a long command is: on a terminal by a line that changes, elsewhere by a line
// from time to time.
type Meter struct {
	*Line
	step  string
	began time.Time // of the step
	told  time.Time
}

// NewMeter returns a meter that writes to w. terminal says whether a line can be written over.
func NewMeter(w io.Writer, terminal bool) *Meter { return &Meter{Line: NewLine(w, terminal)} }

// Say prints a line that stays.
func (m *Meter) Say(text string) { fmt.Fprintln(m.Line, text) }

// Progress says how far a step is. total may be an estimate.
func (m *Meter) Progress(step string, done, total int64) {
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
	m.Show(text)
}
