package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/walpost/walpost/internal/command/statuspage"
)

// A running walpost takes what it can from the changed file, all of it or nothing, and says everywhere what it did. Neither Postgres
// nor Kafka has to be there.
func TestSIGHUPReloadsTheConfiguration(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "walpost.yaml")
	write := func(more string) {
		t.Helper()
		text := "source: {dsn: postgres://u@127.0.0.1:1/d, table: public.outbox}\nkafka: {brokers: [127.0.0.1:1]}\n" + more
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	p := start(t, "run", "--config", name)
	hangup := func(more, logged, refused string) {
		t.Helper()
		write(more)
		if err := p.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		line := p.log.Wait(t, logged)
		p.until("reload_error: "+refused, func(v *statuspage.View) bool {
			return (v.ReloadError == "") == (refused == "") && strings.Contains(v.ReloadError, refused)
		})
		ok := 1
		if refused != "" {
			ok = 0
			if !strings.Contains(line, "configuration not reloaded") {
				t.Errorf("the log says %s", line)
			}
		}
		if _, metrics := p.get("/metrics"); !strings.Contains(metrics, fmt.Sprintf("walpost_config_last_reload_successful %d\n", ok)) {
			t.Errorf("after %q: walpost_config_last_reload_successful is not %d", more, ok)
		}
		code, status := command(t, "status", "--config", name, "--http", strings.TrimPrefix(p.page, "http://"))
		if refused != "" && strings.Contains(refused, "restart") && (code != exitFailed || !strings.Contains(status, refused)) {
			t.Errorf("status exits with %d, and says\n%s", code, status)
		}
	}
	hangup("monitor: {retained_warn: 2GiB}\nlog: {level: error}\n", `"changed":["monitor.retained_warn: 2GiB","log.level: error"]`, "")
	hangup("log: {level: loud}\n", "must be one of debug, info, warn, error", "walpost.yaml:3:14: log.level")
	hangup("log: {level: info}\nname: other\n", "only a restart applies a change of name.", "only a restart applies a change of name.")
	before := len(p.log.String())
	hangup("monitor: {retained_critical: 1KiB}\n", "must be at least monitor.retained_warn, 1GiB", "monitor.retained_critical")
	write("monitor: {retained_warn: 2GiB}\nlog: {level: error}\n")
	for range 5 {
		if err := p.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		p.until("accepted", func(v *statuspage.View) bool { return v.ReloadError == "" })
	}
	if strings.Contains(p.log.String()[before:], `"level":"info"`) {
		t.Errorf("log.level: error is not in effect:\n%s", &p.log)
	}
	hangup("", `"changed":["monitor.retained_warn: 1GiB","log.level: info"]`, "")
	if code := p.stop(); code != 0 {
		t.Errorf("exits with %d", code)
	}
}

// Without a file there is nothing to read again, and the end of a terminal ends the process.
func TestSIGHUPEndsAProcessWithoutAFile(t *testing.T) {
	t.Parallel()
	handled := make(chan os.Signal, 1) // a program that is started where SIGHUP is ignored, as behind nohup, ignores it, too
	signal.Notify(handled, syscall.SIGHUP)
	defer signal.Stop(handled)
	p := start(t, "run", "--dsn", "postgres://u@127.0.0.1:1/d", "--table", "outbox", "--brokers", "127.0.0.1:1")
	if err := p.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if code := p.ended(); code != -1 {
		t.Errorf("exits with %d, and not by the signal", code)
	}
}
