package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/conf"
)

// A reloader reads the configuration again after a SIGHUP. It applies all that has changed, or nothing: a process whose configuration
// is partly that of the file is a riddle.
type reloader struct {
	load    func() (fileConfig, error)
	signals chan os.Signal
	relay   *walpost.Relay
	now     fileConfig
	log     *slog.Logger
	done    func(err error) // is told how each attempt ended
}

// catch keeps SIGHUP for watch, so that a signal during the start does not end the process. Without a file, SIGHUP ends the
// process as it ends any other.
func (r *reloader) catch(file string) {
	if r.signals = make(chan os.Signal, 1); file != "" {
		signal.Notify(r.signals, syscall.SIGHUP)
	}
}

// watch reloads until the returned function is called.
func (r *reloader) watch() (stop func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range r.signals {
			err := r.reload()
			if err != nil {
				r.log.Error("configuration not reloaded: walpost continues with the configuration from before the change", "err", err)
			}
			r.done(err)
		}
	}()
	return func() {
		signal.Stop(r.signals)
		close(r.signals)
		<-ended
	}
}

func (r *reloader) reload() error {
	next, err := r.load()
	if err != nil {
		return err
	}
	applied, refused := []string{}, []string{}
	for _, c := range conf.Changes(&r.now, &next) {
		if applied = append(applied, c.String()); !c.Has("reload") {
			refused = append(refused, c.Path)
		}
	}
	if len(refused) > 0 {
		return fmt.Errorf("only a restart applies a change of %s. Restart walpost, or undo the change", strings.Join(refused, ", "))
	}
	if err := r.relay.SetLimits(next.Monitor); err != nil {
		return err
	}
	r.now = next
	if !r.log.Enabled(context.Background(), slog.LevelInfo) { // else the line is written although the new level may hide it
		setLevel(next.Log)
	}
	r.log.Info("configuration reloaded", "changed", applied)
	setLevel(next.Log)
	return nil
}
