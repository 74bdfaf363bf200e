package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cmd/walpost/internal/progress"
	"github.com/walpost/walpost/relay"
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
	log.Info("connected", "slot", "a", "epoch", 7, "err", io.EOF)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(text), " INF connected err=EOF epoch=7 slot=a\n") || strings.Contains(string(text), "\x1b") {
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

// Tools read these lines, so their fields have an order, and names and formats that stay.
func TestALineOfTheLog(t *testing.T) {
	defer setLevel(logConfig{Level: "info"})
	now := regexp.MustCompile(`"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"`)
	at := time.Date(2026, 11, 5, 7, 8, 9, 120_000_000, time.UTC)
	dead := &relay.DeadLetter{Token: "0-16B3840-1-0c77be12", EventID: "7", Table: "public.outbox", Reason: "too_large", Text: "message <too> large"}
	for _, c := range []struct {
		level string
		log   func(log *slog.Logger)
		want  string
	}{
		{"info", func(log *slog.Logger) { log.Debug("hidden") }, ""},
		{"debug", func(log *slog.Logger) { log.Debug("shown") }, `{"level":"debug",TIME,"message":"shown"}`},
		{"info", func(log *slog.Logger) {
			log.Info("recovered", "for", 90*time.Second, "times", 3, "oldest", at)
		}, `{"level":"info","for":"1m30s","times":3,"oldest":"2026-11-05T07:08:09.120Z",TIME,"message":"recovered"}`},
		{"info", func(log *slog.Logger) {
			log.With("slot", "a").Warn("lost", "err", fmt.Errorf("read: %w", io.EOF), slog.Attr{}, "pids", []int32{7, 8}, "tables", []string{"a<b"})
		}, `{"level":"warn","slot":"a","err":"read: EOF","pids":[7,8],"tables":["a<b"],TIME,"message":"lost"}`},
		{"info", func(log *slog.Logger) {
			log.With("times", uint64(1)).Error("dead", dead.Fields()...)
		}, `{"level":"error","times":1,"token":"0-16B3840-1-0c77be12","id":"7","table":"public.outbox","reason":"too_large","topic":"unknown","err":"message <too> large",TIME,"message":"dead"}`},
		{"error", func(log *slog.Logger) { log.Warn("hidden") }, ""},
	} {
		var b bytes.Buffer
		c.log(newLogger(logConfig{Level: c.level, Format: "json"}, &b))
		if got := strings.TrimSuffix(now.ReplaceAllString(b.String(), "TIME"), "\n"); got != c.want {
			t.Errorf("the line is\n%s\nand not\n%s", got, c.want)
		}
	}
}

// Commands other than run say themselves what they do.
func TestTheLogOfACommandIsSilent(t *testing.T) {
	if defaultConfig().Logger.Enabled(t.Context(), slog.LevelError) {
		t.Error("the packages write to it")
	}
}
