// Package service tells systemd how the relay is: that it runs, what it waits for, and that its loop still turns (Type=notify with
// WatchdogSec, see sd_notify(3)). Without systemd it does nothing.
package service

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// A Report is what systemd is told about the relay.
type Report struct {
	Alive bool   // the loop turns; a relay that waits, or is halted, is alive
	Text  string // for systemctl status
}

// reportEvery is the time between two reports if there is no watchdog.
const reportEvery = 10 * time.Second

// Notify reports until the returned function is called. It says that the service is ready at once: a relay that waits for Kafka or
// Postgres must not be started again. While the relay is not alive, systemd gets no sign of life. The end of ctx is the beginning of
// the stop, during which the signs of life go on.
func Notify(ctx context.Context, report func() Report, log *slog.Logger) (stop func()) {
	if sent, err := daemon.SdNotify(false, daemon.SdNotifyReady); !sent {
		if err != nil {
			log.Warn("systemd cannot be notified: it will treat the start as failed", "err", err)
		}
		return func() {}
	}
	every := reportEvery
	if limit, err := daemon.SdWatchdogEnabled(false); err == nil && limit > 0 {
		every = min(every, limit/3)
	}
	unasked := context.AfterFunc(ctx, func() { _, _ = daemon.SdNotify(false, daemon.SdNotifyStopping) }) // TimeoutStopSec bounds the stop in any case
	ended := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
			}
			r := report()
			state := "STATUS=" + strings.Join(strings.Fields(r.Text), " ")
			if r.Alive {
				state += "\n" + daemon.SdNotifyWatchdog
			}
			_, _ = daemon.SdNotify(false, state) // systemd sees that the sign of life is missing
		}
	})
	return func() {
		unasked()
		close(ended)
		done.Wait()
	}
}
