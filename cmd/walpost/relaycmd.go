package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/command/statuspage"
	"github.com/walpost/walpost/internal/service"
	"github.com/walpost/walpost/spans"
)

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "relays events until it is stopped",
		Long: `run relays events until it is stopped. After SIGTERM or SIGINT, it stops reading events, waits up to
shutdown_grace for acknowledgements, and exits with 0. A second signal ends it immediately if it
arrives more than a second after the first.

If Kafka, a topic or the database isn't available, run waits, and /readyz and the log say what it is
waiting for. run halts if the slot is lost, if the server's history doesn't continue the previous
server's, or if an event can never be delivered and delivery.on_poison is halt. An operator must
then fix the cause. run shows the reason on /readyz for halt_linger, and exits with 3. Before it
halts on an event, it delivers all earlier events.

After SIGHUP, run reads the file again. It applies new values of the keys that docs/configuration.md
marks, and refuses the file if another key has changed. It reads files with secrets again for each
connection, without a SIGHUP.

The configuration is a file, flags, or both. A flag overrides a WALPOST_… variable, and a variable
overrides the file. Each configuration flag has a variable with its name: for --dsn, it's
WALPOST_DSN.`,
		Example: `  walpost run --config walpost.yaml
  walpost run --dsn postgres://walpost@db:5432/shop --brokers kafka:9092 --table public.outbox
  walpost run --dsn postgres://walpost@db:5432/shop --table outbox --stdout --checkpoint-store file --checkpoint-path ./position`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).Validate)
	stdout := cmd.Flags().Bool("stdout", false, "write to standard output; needs --checkpoint-store file")
	gap := cmd.Flags().String("accept-gap", "", "accept the gap with this `token`, which a refusal printed; its events are lost")
	unordered := cmd.Flags().Bool("unordered", false, "publish a snapshot even if the order is unknown")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var reload reloader
		reload.catch(namedFile(cmd.Flags()))
		with := func(c *fileConfig) {
			c.AcceptGap, c.Unordered = *gap, *unordered
			if *stdout {
				c.Stdout = cmd.OutOrStdout()
			}
		}
		reload.load = func() (fileConfig, error) { return load(with) }
		return load.work(cmd, with, func(ctx context.Context, cfg fileConfig) error {
			return runRelay(ctx, cfg, newLogger(cfg.Log, cmd.ErrOrStderr()), nil, &reload)
		})
	}
	return cmd
}

// runRelay relays by cfg until ctx ends. HTTP is there before anything is connected, and until the relay has ended. With
// started it reports the relay and the address of the status page ("" for none) as soon as both are there. reload has load and signals,
// and is nil where nothing is read again.
func runRelay(ctx context.Context, cfg fileConfig, log *slog.Logger, started func(r *walpost.Relay, page string), reload *reloader) error {
	b := buildInfo()
	shown := statuspage.New(cfg.HTTP, statuspage.Build{Version: b.version, Commit: b.commit, GoVersion: b.goVersion})
	cfg.Logger, cfg.Version = log, b.version
	cfg.Kafka.Hooks = append(cfg.Kafka.Hooks, shown.Hook())
	if cfg.Tracing.On() {
		tracer, err := cfg.Tracing.Open(b.version, log)
		if err != nil {
			return err
		}
		defer tracer.Close()
		cfg.Observer = spans.New(tracer)
		shown.Spans(tracer.Lost)
	}
	r, err := walpost.New(cfg.Config)
	if err != nil {
		return err
	}
	if reload != nil {
		reload.relay, reload.now, reload.log, reload.done = r, cfg, log, shown.Reloaded
		defer reload.watch()()
	}
	page := ""
	if !cfg.HTTP.Off() {
		addr, stop, err := shown.Serve(r, log)
		if err != nil {
			return err
		}
		defer stop()
		page = cfg.HTTP.URL(addr) + "/"
		log.Info("http listens", "url", page)
	}
	if started != nil {
		started(r, page)
	}
	defer service.Notify(ctx, func() service.Report { return statuspage.Service(r) }, log)()
	return r.Run(ctx)
}

// sameStop is how long after the first signal another one means the same: timeout(1) and some supervisors send a signal to the
// process and to its group.
const sameStop = time.Second

// untilSignal is a context that ends with the first SIGTERM or SIGINT. A later one ends the process at once.
func untilSignal(parent context.Context, stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
			return
		}
		first := time.Now()
		for at := first; at.Sub(first) < sameStop; at = time.Now() {
			<-signals
		}
		fmt.Fprintln(stderr, "walpost: second signal: exiting immediately; the next start delivers the unconfirmed events again")
		os.Exit(exitFailed)
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel()
	}
}
