//go:build unix

package main

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// timeout(1) sends a signal to the process and to its group, so a stop must not count it as a second one.
func TestASignalThatIsSentTwiceStopsCleanly(t *testing.T) {
	t.Parallel()
	p := start(t, "run", "--dsn", "postgres://u@127.0.0.1:1/d", "--table", "outbox", "--brokers", "127.0.0.1:1")
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) { // the first may have ended it already
		t.Fatal(err)
	}
	if code := p.ended(); code != 0 {
		t.Errorf("exits with %d", code)
	}
}

// The file is a pipe at first, so the process reads it for as long as the test wants.
func TestSIGHUPDuringTheStartReloads(t *testing.T) {
	t.Parallel()
	const text = "source: {dsn: postgres://u@127.0.0.1:1/d, table: public.outbox}\nkafka: {brokers: [127.0.0.1:1]}\n"
	name := filepath.Join(t.TempDir(), "walpost.yaml")
	err := cmp.Or(syscall.Mkfifo(name, 0o600), os.WriteFile(name+".new", []byte(text+"monitor: {retained_warn: 2GiB}\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	p := spawn(t, "run", "--config", name, "--http", "127.0.0.1:0")
	pipe, err := os.OpenFile(name, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	for limit := time.Now().Add(2 * time.Minute); errors.Is(err, syscall.ENXIO); pipe, err = os.OpenFile(name, os.O_WRONLY|syscall.O_NONBLOCK, 0) {
		select {
		case <-p.done:
			t.Fatal("the process ended before it read its configuration")
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(limit) {
			t.Fatal("the process has not opened its configuration in 2 minutes")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	err = cmp.Or(os.Rename(name+".new", name), p.Process.Signal(syscall.SIGHUP))
	if err == nil {
		_, err = pipe.WriteString(text)
	}
	if err := cmp.Or(err, pipe.Close()); err != nil {
		t.Fatal(err)
	}
	p.log.Wait(t, `"changed":["monitor.retained_warn: 2GiB"]`)
	p.listens()
	if code := p.stop(); code != 0 {
		t.Errorf("exits with %d", code)
	}
}
