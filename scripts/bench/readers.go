//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// pgReader is pg_recvlogical to /dev/null.
type pgReader struct {
	*env
	path string
}

func (p *pgReader) String() string { return "pg_recvlogical" }

func (p *pgReader) read(ctx context.Context, b *backlog, slot string) (result, error) {
	load, err := p.load(ctx)
	if err != nil {
		return result{}, err
	}
	proc, err := launch(ctx, p.path, "--dbname", p.dsn, "--slot", slot, "--start", "--no-loop", "--endpos", b.end,
		"--file", "/dev/null", "-o", "proto_version=1", "-o", "publication_names=bench")
	if err != nil {
		return result{}, err
	}
	took, err := proc.wait()
	if err != nil {
		return result{}, err
	}
	return proc.result(b.rows, took, load), nil
}

// walpostReader is `walpost run` into Kafka. The measurement ends when the brokers have everything.
type walpostReader struct {
	*env
	path, name string
}

func (w *walpostReader) String() string { return w.name }

func (w *walpostReader) read(ctx context.Context, b *backlog, slot string) (result, error) {
	topic, prefix := w.topic()
	adm, err := kadm.NewOptClient(kgo.SeedBrokers(w.kafka.Brokers()...))
	if err != nil {
		return result{}, err
	}
	defer adm.Close()
	load, err := w.load(ctx)
	if err != nil {
		return result{}, err
	}
	proc, err := w.relay(ctx, w.path, slot, prefix)
	if err != nil {
		return result{}, err
	}
	for stored := int64(0); stored < int64(b.rows); {
		select {
		case <-proc.done:
			return result{}, fmt.Errorf("ended early: %w\n%s", errors.Join(proc.err, ctx.Err()), proc.out.String())
		case <-time.After(20 * time.Millisecond):
		}
		ends, err := adm.ListEndOffsets(ctx, topic)
		if err != nil {
			proc.kill()
			return result{}, err
		}
		stored = 0
		ends.Each(func(o kadm.ListedOffset) { stored += o.Offset })
	}
	took := time.Since(proc.began)
	if err := proc.stop(); err != nil {
		return result{}, err
	}
	if err := check(ctx, w.kafka.Brokers(), topic, b); err != nil {
		return result{}, err
	}
	if _, err := adm.DeleteTopic(ctx, topic); err != nil {
		return result{}, err
	}
	return proc.result(b.rows, took, load), nil
}

// relay starts a walpost on the slot, to topics with the prefix.
func (e *env) relay(ctx context.Context, path, slot, prefix string) (*process, error) {
	file := filepath.Join(e.dir, slot+".yaml")
	text := fmt.Sprintf(`name: %s
source: {dsn: %q, table: public.outbox, slot: %s, publication: bench, create: false%s}
router: {route.topic.replacement: "%s${routedByValue}"}
kafka: {brokers: [%s]}
http: {listen: "127.0.0.1:0"}
%s
`, slot, e.dsn, slot, e.source, prefix, strings.Join(e.kafka.Brokers(), ", "), e.extra)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return launch(ctx, path, "run", "--config", file)
}

// readyRelay starts a walpost and waits until it is ready.
func (e *env) readyRelay(ctx context.Context, path, slot, prefix string) (*process, error) {
	proc, err := e.relay(ctx, path, slot, prefix)
	if err != nil {
		return nil, err
	}
	for {
		if page := proc.page(); page != "" {
			if resp, err := http.Get(page + "/readyz"); err == nil {
				_ = resp.Body.Close() // only the status counts
				if resp.StatusCode == http.StatusOK {
					return proc, nil
				}
			}
		}
		select {
		case <-proc.done:
			return nil, fmt.Errorf("walpost ended: %w\n%s", errors.Join(proc.err, ctx.Err()), proc.out.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// A process is a reader that runs.
type process struct {
	cmd   *exec.Cmd
	began time.Time
	ended time.Time
	out   output
	done  chan struct{} // closed when it has ended; err, ended and peak are valid then
	err   error
	peak  float64 // MB
}

// launch starts a program, and ends it when ctx does.
func launch(ctx context.Context, path string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, path, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	go func() {
		defer close(p.done)
		// The maximum of rusage is no use: a child inherits the maximum of its parent.
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case p.err = <-ended:
				p.ended = time.Now()
				return
			case <-tick.C:
				p.peak = max(p.peak, highWater(p.cmd.Process.Pid))
			}
		}
	}()
	return p, nil
}

// wait waits for the end and returns how long it took.
func (p *process) wait() (time.Duration, error) {
	<-p.done
	if p.err != nil {
		return 0, fmt.Errorf("%w\n%s", p.err, p.out.String())
	}
	return p.ended.Sub(p.began), nil
}

// stop asks for the end and waits for it.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	_, err := p.wait()
	return err
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// result is valid when the process has ended.
func (p *process) result(rows int, took time.Duration, load string) result {
	cpu := p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	return result{rate: float64(rows) / took.Seconds(), cpu: cpu.Seconds() / float64(rows) * 1e6, rss: p.peak, load: load}
}

// page is the address of walpost's HTTP server, or "" before it listens.
func (p *process) page() string {
	for line := range strings.Lines(p.out.String()) {
		var l struct{ URL, Message string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Message == "http listens" {
			return strings.TrimSuffix(l.URL, "/")
		}
	}
	return ""
}

// highWater is the peak resident memory of a process in MB, or 0 if the process has ended.
func highWater(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	var kb float64
	_, _ = fmt.Sscan(rest, &kb) // 0 without a number
	return kb / 1024
}

// output keeps what a process writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
