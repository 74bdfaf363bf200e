package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cmd/walpost/internal/progress"
)

// Colours are for people: a file, a pipe and a log collector get text only.
func TestConsoleColoursOnlyATerminal(t *testing.T) {
	console := logConfig{Level: "info", Format: "console"}
	path := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	log := newLogger(console, file)
	log.Info().Str("slot", "a").Msg("connected")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(text), " INF connected slot=a\n") || strings.Contains(string(text), "\x1b") {
		t.Errorf("a file: %q", text)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	if progress.Terminal(write) {
		t.Error("a pipe counts as a terminal")
	}
	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	if !progress.Terminal(tty) {
		t.Error("a terminal counts as none")
	}
}

func TestDurationsInTheLogHaveTheirUnit(t *testing.T) {
	var b bytes.Buffer
	log := newLogger(logConfig{Level: "info", Format: "json"}, &b)
	log.Info().Dur("for", 90*time.Second).Msg("recovered")
	if !strings.Contains(b.String(), `"for":"1m30s"`) {
		t.Error(b.String())
	}
}
