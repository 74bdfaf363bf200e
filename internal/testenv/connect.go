//go:build linux || darwin

package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/internal/localpg"
)

// A ConnectWorker is a running Kafka Connect worker, a standalone one, that has Debezium's Postgres connector. It keeps the
// connectors' configurations in memory and their offsets in a file, so that a connector that is deleted and put again under the
// same name goes on where it was, as long as the worker is there.
type ConnectWorker struct {
	keeper  *keeper.Keeper
	brokers []string
	java    string
	lib     string
	port    int
}

// Connect starts a Kafka Connect worker on the brokers of a cluster; it ends with the test. props are worker properties that win
// over testenv's own: converters are StringConverter where a connector names none, offsets are flushed every second (Connect's
// default is a minute), records may have 8 MiB, and there is no automatic retry. Topics are the test's to make, as for any
// other producer. Where Java or Maven is missing the test is skipped, with a line on standard error, or fails if
// WALPOST_REQUIRE_KAFKA is 1.
func Connect(t testing.TB, c *KafkaCluster, props map[string]string) *ConnectWorker {
	t.Helper()
	needConnect(t)
	w, err := startConnect(t.Context(), c.Brokers(), props)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last messages of kafka connect:\n%s", w.Log(40))
		}
		if err := w.keeper.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func startConnect(ctx context.Context, brokers []string, props map[string]string) (*ConnectWorker, error) {
	lib, java, err := connectLib(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for try := 1; ; try++ {
		k, err := keeper.New(keeper.Folder{Base: os.TempDir(), Name: "walpost-connect-"})
		if err != nil {
			return nil, err
		}
		w := &ConnectWorker{keeper: k, brokers: brokers, java: java, lib: lib}
		err = w.first(ctx, props)
		if err == nil {
			return w, nil
		}
		// Somebody else may have taken the port between our choice and the worker's start.
		again := try < 3 && strings.Contains(w.Log(200), "already in use")
		err = errors.Join(fmt.Errorf("kafka connect: start: %w: %s", err, w.Log(30)), k.Close())
		if !again {
			return nil, err
		}
	}
}

func (w *ConnectWorker) first(ctx context.Context, props map[string]string) error {
	var err error
	if w.port, err = localpg.FreePort(); err != nil {
		return err
	}
	dir := w.keeper.Folder()
	p := map[string]string{
		"bootstrap.servers":                                 strings.Join(w.brokers, ","),
		"listeners":                                         "http://" + w.address(),
		"plugin.path":                                       filepath.Join(w.lib, "plugins"),
		"plugin.discovery":                                  "service_load",
		"key.converter":                                     "org.apache.kafka.connect.storage.StringConverter",
		"value.converter":                                   "org.apache.kafka.connect.storage.StringConverter",
		"offset.storage.file.filename":                      filepath.Join(dir, "offsets"),
		"offset.flush.interval.ms":                          "1000",
		"task.shutdown.graceful.timeout.ms":                 "10000",
		"producer.max.request.size":                         "8388608",
		"connector.client.config.override.policy":           "All",
		"producer.metadata.max.age.ms":                      "5000",
		"producer.reconnect.backoff.max.ms":                 "500",
		"producer.metadata.recovery.rebootstrap.trigger.ms": "10000",
	}
	maps.Copy(p, props)
	if err := writeProperties(filepath.Join(dir, "worker.properties"), p); err != nil {
		return err
	}
	err = writeProperties(filepath.Join(dir, "log4j2.properties"), map[string]string{
		"status":                         "error",
		"appender.out.type":              "Console",
		"appender.out.name":              "out",
		"appender.out.layout.type":       "PatternLayout",
		"appender.out.layout.pattern":    "%d %p %c{1} [%t]: %m%n",
		"rootLogger.level":               "warn",
		"rootLogger.appenderRef.out.ref": "out",
		"logger.dbz.name":                "io.debezium",
		"logger.dbz.level":               "info",
	})
	if err != nil {
		return err
	}
	return w.Start(ctx)
}

func (w *ConnectWorker) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(w.port)) }
func (w *ConnectWorker) log() string     { return filepath.Join(w.keeper.Folder(), "log") }

// connectJVM has room for dozens of connectors; what is not used is not taken.
var connectJVM = []string{"-Xmx2g", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto"}

// Start starts the worker again after Stop or Kill, on the same port and with the offsets that it had written, and returns when
// it answers. It has no connectors then.
func (w *ConnectWorker) Start(ctx context.Context) error {
	dir := w.keeper.Folder()
	_, err := w.keeper.Start(keeper.Command{
		Path: w.java,
		Args: append(slices.Clone(connectJVM),
			"-Djava.io.tmpdir="+dir, "-Dlog4j2.configurationFile="+filepath.Join(dir, "log4j2.properties"),
			"-cp", filepath.Join(w.lib, "lib", "*"), "org.apache.kafka.connect.cli.ConnectStandalone",
			filepath.Join(dir, "worker.properties")),
		Dir: dir, Env: os.Environ(), Log: w.log(), Quit: syscall.SIGKILL, Grace: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	for {
		exited, err := w.keeper.Wait(50 * time.Millisecond)
		if err != nil {
			return err
		}
		if exited != "" {
			return errors.New(exited)
		}
		var names []string
		if err := w.rest(ctx, http.MethodGet, "/connectors", nil, &names); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// Stop shuts the worker down in good order: its connectors stop, and what they have delivered is written down.
func (w *ConnectWorker) Stop() error { return w.end(syscall.SIGTERM) }

// Kill kills the worker with SIGKILL.
func (w *ConnectWorker) Kill() error { return w.end(syscall.SIGKILL) }

func (w *ConnectWorker) end(s syscall.Signal) error {
	if err := w.keeper.Signal(s); err != nil {
		return err
	}
	exited, err := w.keeper.Wait(time.Minute)
	if err == nil && exited == "" {
		err = fmt.Errorf("kafka connect: still running a minute after %s: %s", s, w.Log(20))
	}
	return err
}

// Log returns the last lines of the worker's messages.
func (w *ConnectWorker) Log(lines int) string {
	b, err := os.ReadFile(w.log())
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Debezium returns the least configuration of a Postgres connector for pgoutput on a database: what it connects to and a slot, a
// publication and a topic prefix called name. What a test adds may replace all of it.
func Debezium(dsn, name string) (map[string]string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, err
	}
	password, _ := u.User.Password()
	return map[string]string{
		"connector.class":             "io.debezium.connector.postgresql.PostgresConnector",
		"tasks.max":                   "1",
		"database.hostname":           u.Hostname(),
		"database.port":               u.Port(),
		"database.user":               u.User.Username(),
		"database.password":           password,
		"database.dbname":             strings.TrimPrefix(u.Path, "/"),
		"database.sslmode":            "disable",
		"topic.prefix":                name,
		"plugin.name":                 "pgoutput",
		"slot.name":                   name,
		"publication.name":            name,
		"publication.autocreate.mode": "filtered",
	}, nil
}

// A RESTError is a refusal of the worker.
type RESTError struct {
	Status  int
	Message string
}

func (e *RESTError) Error() string {
	return fmt.Sprintf("kafka connect: status %d: %s", e.Status, e.Message)
}

func (w *ConnectWorker) rest(ctx context.Context, method, path string, body, into any) error {
	var in strings.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in.Reset(string(b))
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+w.address()+path, &in)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		refusal := RESTError{Status: resp.StatusCode}
		var m struct{ Message string }
		_ = json.NewDecoder(resp.Body).Decode(&m) // without a message the status says enough
		refusal.Message = m.Message
		return &refusal
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
