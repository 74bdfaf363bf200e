package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// walpostTemplate is the configuration of walpost. Another relay has a template of its own.
const walpostTemplate = `name: {name}
source: {dsn: "{dsn}", table: public.outbox, {stream}{source}}
router: {route.topic.replacement: "{prefix}${routedByValue}"}
kafka: {brokers: [{brokers}]{login}}
delivery: {window: {events: {window}}{delivery}}
http: {listen: "127.0.0.1:0"}
halt_linger: 0s
{extra}
`

// A relay is one instance. Whenever its process ends it is started again, as a supervisor would, until stop, or until it asks
// for a person.
type relay struct {
	r       *run
	number  int
	log     string // path
	program string // "" is walpost of this checkout

	mu     sync.Mutex
	cmd    *exec.Cmd // nil while no process runs
	wanted bool
	halted bool
	env    []string      // of the next process only
	ended  chan struct{} // of the process; replaced with each
	gone   chan struct{} // closed when nobody starts it any more
	peak   int64         // resident bytes
	starts int
}

// haltCode is walpost's exit code if a restart doesn't help.
const haltCode = 3

// launch starts one more instance.
func (r *run) launch(env ...string) *relay {
	r.Helper()
	p := &relay{r: r, number: len(r.relays), env: env, program: r.program}
	p.log = filepath.Join(r.dir, fmt.Sprintf("relay%d.log", p.number))
	r.mu.Lock()
	r.relays = append(r.relays, p)
	r.mu.Unlock()
	p.start()
	r.Cleanup(func() { p.end(syscall.SIGKILL) })
	return p
}

// start has the instance run.
func (p *relay) start() {
	p.mu.Lock()
	p.wanted, p.halted, p.gone = true, false, make(chan struct{})
	p.mu.Unlock()
	up := make(chan error, 1)
	go p.supervise(up)
	if err := <-up; err != nil {
		p.r.Fatalf("start the relay: %v", err)
	}
}

func (p *relay) supervise(up chan<- error) {
	defer close(p.gone)
	for {
		err := p.launchOnce()
		if up != nil {
			up <- err
			up = nil
		}
		if err != nil {
			p.r.Logf("relay %d: %v", p.number, err)
			return
		}
		err = p.cmd.Wait()
		p.mu.Lock()
		code := p.cmd.ProcessState.ExitCode()
		p.cmd = nil
		close(p.ended)
		again := p.wanted
		if again && p.r.walpost() && code == haltCode && !p.r.always {
			again, p.halted = false, true
		}
		p.mu.Unlock()
		if code != -1 && again {
			p.r.Logf("relay %d ended: %v", p.number, err)
		}
		if !again {
			return
		}
		if code != -1 {
			time.Sleep(200 * time.Millisecond) // as a supervisor would
		}
	}
}

func (p *relay) launchOnce() error {
	args := p.r.command(p.program)
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the process has its own
	cmd := exec.Command(args[0], args[1:]...)
	p.mu.Lock()
	defer p.mu.Unlock()
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), p.env...)
	p.env = nil
	if !p.wanted {
		return fmt.Errorf("it was stopped")
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.ended = cmd, make(chan struct{})
	p.starts++
	return nil
}

// signal sends a signal to the process, if there is one, and returns the channel that closes at its end.
func (p *relay) signal(s os.Signal) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		ended := make(chan struct{})
		close(ended)
		return ended
	}
	_ = p.cmd.Process.Signal(s) // it may have ended
	return p.ended
}

// kill is kill -9. The supervisor starts the instance again.
func (p *relay) kill() {
	p.r.crashed()
	<-p.signal(syscall.SIGKILL)
}

// end sends a signal to the process and has nobody start it again.
func (p *relay) end(s os.Signal) {
	p.mu.Lock()
	p.wanted = false
	p.mu.Unlock()
	p.signal(s)
	<-p.gone
}

// stop stops the instance in good order, which ends without an error, and does not start it again.
func (p *relay) stop() {
	p.r.Helper()
	p.mu.Lock()
	p.wanted = false
	cmd := p.cmd
	p.mu.Unlock()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(patience):
		p.r.Fatalf("relay %d does not end in %s after SIGTERM", p.number, patience)
	}
	if cmd == nil || !p.r.walpost() {
		return
	}
	// A process that has just started may not know SIGTERM yet.
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	fenced := p.r.always && status.ExitStatus() == haltCode
	if status.ExitStatus() != 0 && status.Signal() != syscall.SIGTERM && !fenced {
		p.r.Errorf("relay %d ends with code %d after SIGTERM:\n%s", p.number, cmd.ProcessState.ExitCode(), p.tail())
	}
}

// peakMemory is the most resident bytes that were measured.
func (p *relay) peakMemory() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peak
}

func (p *relay) started() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

func (p *relay) isHalted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.halted
}

// pid is 0 while there is no process.
func (p *relay) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// memory is a line of the process's status in bytes, 0 while there is no process.
func (p *relay) memory(line string) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid()))
	_, rest, _ := strings.Cut(string(text), line+":")
	var kb int64
	_, _ = fmt.Sscan(rest, &kb) // 0 without a number
	return kb << 10
}

// measure notes the memory.
func (p *relay) measure() {
	most := p.memory("VmHWM")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peak = max(p.peak, most)
}

// text is everything that the instance has logged.
func (p *relay) text() string {
	b, _ := os.ReadFile(p.log)
	return string(b)
}

// tail is the end of the log.
func (p *relay) tail() string {
	text := p.text()
	return text[max(0, len(text)-1500):]
}

// metric is the sum of the samples whose lines begin with name, of the newest process of walpost.
func (p *relay) metric(name string) (sum float64) {
	var out testenv.Output
	text := p.text()
	if at := strings.LastIndex(text, `"http listens"`); at >= 0 {
		_, _ = io.WriteString(&out, text[strings.LastIndex(text[:at], "\n")+1:]) // it never fails
	}
	client := http.Client{Timeout: 2 * time.Second}
	resp, err := client.Get(out.Page() + "/metrics")
	if err != nil {
		return 0
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	body, _ := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(body)) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			fields := strings.Fields(line)
			v, _ := strconv.ParseFloat(fields[len(fields)-1], 64) // 0 is as good
			sum += v
		}
	}
	return sum
}
