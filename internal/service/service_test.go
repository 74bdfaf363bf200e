package service

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// systemd listens as systemd does, and gives the messages.
func systemd(t *testing.T) <-chan string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	messages := make(chan string, 1000)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			messages <- string(buf[:n])
		}
	}()
	return messages
}

func TestSystemdIsToldHowTheRelayIs(t *testing.T) {
	messages := systemd(t)
	t.Setenv("WATCHDOG_USEC", "30000")
	var hangs atomic.Bool
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := Notify(ctx, func() Report { return Report{Alive: !hangs.Load(), Text: "stalled:\nKafka is away"} }, slog.New(slog.DiscardHandler))
	wait := func(want string) {
		t.Helper()
		for {
			select {
			case got := <-messages:
				if got == want {
					return
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("systemd never got %q", want)
			}
		}
	}
	wait("READY=1")
	wait("STATUS=stalled: Kafka is away\nWATCHDOG=1")
	hangs.Store(true)
	wait("STATUS=stalled: Kafka is away")
	cancel()
	wait("STOPPING=1")
	hangs.Store(false)
	wait("STATUS=stalled: Kafka is away\nWATCHDOG=1") // while the relay stops, it still gives signs of life
	stop()
}

func TestWithoutSystemdNothingIsReported(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	stop := Notify(context.Background(), func() Report {
		t.Error("somebody asks for a report")
		return Report{}
	}, slog.New(slog.DiscardHandler))
	stop()
}
