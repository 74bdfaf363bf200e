//go:build linux

package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// relay starts a walpost on the slot, or one that polls and has the slot's name, to topics with the prefix.
func (e *env) relay(b *testing.B, path, slot, prefix string, args ...string) *process {
	file, reads := filepath.Join(e.dir, slot+".yaml"), "slot: "+slot+", publication: bench, create: false"
	if e.poll != "" {
		bound := e.pg.Value(b, e.dsn, "SELECT 'after ' || system_identifier || '/' || pg_snapshot_xmin(pg_current_snapshot())::text FROM pg_control_system()")
		reads = "kind: poll, order_column: n, snapshot: " + bound + ", poll: {" + e.poll + "}"
	}
	check(b, os.WriteFile(file, fmt.Appendf(nil, `name: %s
source: {dsn: %q, table: public.outbox, %s%s}
router: {route.topic.replacement: "%s${routedByValue}"%s}
kafka: {brokers: [%s]}
http: {listen: "127.0.0.1:0"}
%s
`, slot, e.dsn, reads, e.source, prefix, e.router, strings.Join(e.kafka.Brokers(), ", "), e.extra), 0o600))
	return launch(b, path, append([]string{"run", "--config", file}, args...)...)
}

// readyRelay starts a walpost and waits until it is ready.
func (e *env) readyRelay(b *testing.B, path, slot, prefix string) *process {
	p := e.relay(b, path, slot, prefix)
	for {
		if page := p.out.Page(); page != "" {
			if resp, err := http.Get(page + "/readyz"); err == nil {
				_ = resp.Body.Close() // only the status counts
				if resp.StatusCode == http.StatusOK {
					return p
				}
			}
		}
		p.sleep(b, 50*time.Millisecond)
	}
}

// A process is a reader that runs.
type process struct {
	cmd          *exec.Cmd
	began, ended time.Time
	out          testenv.Output
	done         chan struct{} // closed when it has ended; err, ended and peak are valid then
	err          error
	peak         float64 // resident memory in MB

	before, after float64 // processor time in seconds, of a process of which only a part counts; 0 for the others
}

// launch starts a program, and kills it when the benchmark ends.
func launch(b *testing.B, path string, args ...string) *process {
	return launchTo(b, nil, path, args...)
}

// launchTo is launch with another standard output, unless out is nil.
func launchTo(b *testing.B, out *os.File, path string, args ...string) *process {
	p := &process{cmd: exec.CommandContext(b.Context(), path, args...), done: make(chan struct{}), began: time.Now()}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if out != nil {
		p.cmd.Stdout = out
	}
	check(b, p.cmd.Start())
	b.Cleanup(func() { <-p.done })
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
	return p
}

// processorTime is the time that counts, in seconds, of a process that has ended.
func (p *process) processorTime() float64 {
	if p.after > 0 {
		return p.after - p.before
	}
	return (p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()).Seconds()
}

// processorTimeSoFar is the CPU time of a process that runs, in seconds, or 0 for none.
func (p *process) processorTimeSoFar() float64 {
	if p == nil {
		return 0
	}
	return processorTime(p.cmd.Process.Pid)
}

// sleep fails the benchmark if the process ends meanwhile.
func (p *process) sleep(b *testing.B, d time.Duration) {
	select {
	case <-p.done:
		b.Fatalf("the program ended early: %v\n%s", p.err, p.out.String())
	case <-time.After(d):
	}
}

// wait waits for a good end.
func (p *process) wait(b *testing.B) {
	<-p.done
	check(b, p.err, p.out.String())
}

// stop asks for the end and waits for it.
func (p *process) stop(b *testing.B) {
	check(b, p.cmd.Process.Signal(syscall.SIGTERM))
	p.wait(b)
}

// end ends a program that may answer with an error, such as a JVM. A program whose parent ignores SIGINT may ignore it, too.
func (p *process) end(b *testing.B) {
	check(b, p.cmd.Process.Signal(syscall.SIGTERM))
	<-p.done
}

// highWater is the peak resident memory of a process in MB, or 0 if the process has ended.
func highWater(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	var kb float64
	_, _ = fmt.Sscan(rest, &kb) // 0 without a number
	return kb / 1024
}

// processorTime is the CPU time of a process in seconds, to a hundredth.
func processorTime(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ") // behind the name
	var user, system float64
	if f := strings.Fields(rest); len(f) > 12 {
		_, _ = fmt.Sscan(f[11]+" "+f[12], &user, &system) // the kernel wrote them
	}
	return (user + system) / 100
}
