package checkpoint

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
)

var update = flag.Bool("update", false, "rewrite testdata from what the tracker does now")

// TestStories plays testdata/*.txt. A file is one tracker; a block is some steps, "----" and what the tracker says then:
//
//	begin [SECONDS]      a transaction, committed at that second (default: one later than the last)
//	add NAME [SIZE]      a delivery in it (default: 1 byte)
//	commit POS           its end
//	idle POS             an idle report
//	ack NAME...          acknowledgements
//	start POS            a new tracker
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got := play(t, string(text)); *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("%s: the tracker tells it differently:\n%s", file, difference(string(text), got))
			}
		})
	}
}

// play runs a story and returns it with the answers that the tracker gives.
func play(t *testing.T, text string) string {
	var out strings.Builder
	s := &stage{t: New(0), tickets: map[string]cdc.Ticket{}}
	var answer []string // since the last ----
	skipping := false   // an answer of the file, up to an empty line
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		switch {
		case skipping && line != "":
			continue
		case line == "----":
			skipping = true
			out.WriteString("----\n" + strings.Join(append(answer, s.state()), "\n") + "\n")
			answer = nil
			continue
		}
		skipping = false
		out.WriteString(line + "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		said, err := s.step(strings.Fields(line))
		if err != nil {
			t.Fatalf("line %d: %q: %v", n+1, line, err)
		}
		if said != "" {
			answer = append(answer, line+": "+said)
		}
	}
	return out.String()
}

type stage struct {
	t       *Tracker
	tickets map[string]cdc.Ticket
	seconds int
}

// step does one line and returns what the tracker answered when it refused. The error is the story's own.
func (s *stage) step(words []string) (said string, err error) {
	number := func(i, otherwise int) int {
		if i >= len(words) {
			return otherwise
		}
		n, e := strconv.Atoi(words[i])
		if e != nil {
			err = e
		}
		return n
	}
	defer func() {
		if p := recover(); p != nil {
			said = fmt.Sprint("panic: ", p)
		}
	}()
	switch words[0] {
	case "start":
		s.t = New(cdc.Position(number(1, 0)))
	case "begin":
		s.seconds = number(1, s.seconds+1)
		s.t.Begin(time.Unix(int64(s.seconds), 0))
	case "add":
		size := number(2, 1)
		s.tickets[words[1]] = s.t.Add(size)
	case "commit":
		if e := s.t.Commit(cdc.Position(number(1, 0))); e != nil {
			said = e.Error()
		}
	case "idle":
		s.t.Idle(cdc.Position(number(1, 0)))
	case "ack":
		for _, name := range words[1:] {
			ticket, ok := s.tickets[name]
			if !ok {
				return "", fmt.Errorf("%s was never added", name)
			}
			s.t.Ack(ticket)
		}
	default:
		err = fmt.Errorf("unknown step")
	}
	return said, err
}

func (s *stage) state() string {
	events, size := s.t.InFlight()
	text := fmt.Sprintf("safe=%d inflight=%d", s.t.Safe(), events)
	if size != events {
		text += fmt.Sprintf(" bytes=%d", size)
	}
	if oldest := s.t.Oldest(); !oldest.IsZero() {
		text += fmt.Sprintf(" oldest=%ds", oldest.Unix())
	}
	if added, pending, open := openTx(s.t); open {
		text += fmt.Sprintf(" open=%d/%d", pending, added)
	}
	return text
}

// difference shows the lines that differ, with the line before.
func difference(want, got string) string {
	var b bytes.Buffer
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		line := func(l []string) string {
			if i < len(l) {
				return l[i]
			}
			return "(nothing)"
		}
		if line(w) != line(g) {
			fmt.Fprintf(&b, "line %d\n  must be %s\n  is      %s\n", i+1, line(w), line(g))
		}
	}
	return b.String()
}
