//go:build linux || darwin

package parity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/localpg"
	"github.com/walpost/walpost/internal/testenv"
)

// A ConnectWorker is a running, standalone Kafka Connect worker with Debezium's Postgres connector.
// It keeps the connectors' configurations in memory and their offsets in a file. Therefore a
// connector that is deleted and created again continues at its offset, as long as the worker
// exists.
type ConnectWorker struct {
	*testenv.JavaServer
	brokers []string
	herder  sync.RWMutex // see inTurn
}

// Connect starts a Kafka Connect worker on the brokers of a cluster. It ends with the test. props
// are worker properties, which replace this package's own: the converters are StringConverter,
// offsets are flushed every second, records may have 8 MiB, and failed tasks are not retried. The
// test must create its topics.
func Connect(t testing.TB, c *testenv.KafkaCluster, props map[string]string) *ConnectWorker {
	t.Helper()
	testenv.ConnectJars.Need(t, "Debezium")
	w, err := startConnect(t.Context(), c.Brokers(), props)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last messages of kafka connect:\n%s", w.Said())
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func startConnect(ctx context.Context, brokers []string, props map[string]string) (w *ConnectWorker, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = localpg.OnFreePorts(func() error {
		s, err := testenv.ConnectJars.Server(ctx, "walpost-connect-")
		if err != nil {
			return err
		}
		w = &ConnectWorker{JavaServer: s, brokers: brokers}
		if err := w.first(ctx, props); err != nil {
			return errors.Join(fmt.Errorf("kafka connect: start: %w", err), s.Close())
		}
		return nil
	})
	return w, err
}

func (w *ConnectWorker) first(ctx context.Context, props map[string]string) error {
	p := map[string]string{
		"bootstrap.servers":                                 strings.Join(w.brokers, ","),
		"listeners":                                         "http://" + w.Address(),
		"plugin.path":                                       strings.TrimSuffix(filepath.Join(w.Jars, "plugins")+","+*confluent, ","),
		"plugin.discovery":                                  "service_load",
		"key.converter":                                     "org.apache.kafka.connect.storage.StringConverter",
		"value.converter":                                   "org.apache.kafka.connect.storage.StringConverter",
		"offset.storage.file.filename":                      w.File("offsets"),
		"offset.flush.interval.ms":                          "1000",
		"task.shutdown.graceful.timeout.ms":                 "10000",
		"producer.max.request.size":                         "8388608",
		"connector.client.config.override.policy":           "All",
		"producer.metadata.max.age.ms":                      "5000",
		"producer.reconnect.backoff.max.ms":                 "500",
		"producer.metadata.recovery.rebootstrap.trigger.ms": "10000",
	}
	maps.Copy(p, props)
	if err := testenv.WriteProperties(w.File("worker.properties"), p); err != nil {
		return err
	}
	return w.Start(ctx)
}

// Start starts the worker again after Stop or Kill, on the same port and with the offsets that it
// had written. It returns when the worker answers. The worker has no connectors.
func (w *ConnectWorker) Start(ctx context.Context) error {
	// The heap has room for dozens of connectors. The JVM takes only what it uses.
	err := w.Run([]string{"-Xmx2g", "-Xms128m"}, map[string]string{"logger.dbz.name": "io.debezium", "logger.dbz.level": "info"},
		"org.apache.kafka.connect.cli.ConnectStandalone", w.File("worker.properties"))
	if err != nil {
		return err
	}
	return w.Await(ctx, func() error {
		var names []string
		return w.rest(ctx, http.MethodGet, "/connectors", nil, &names)
	})
}

// Kill kills the worker with SIGKILL.
func (w *ConnectWorker) Kill() error { return w.End(syscall.SIGKILL, time.Minute) }

// connector returns a minimal configuration of a Postgres connector for pgoutput on a database. The
// slot, the publication and the topic prefix are called name. A test may replace any option.
func connector(dsn, name string) (map[string]string, error) {
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

// inTurn is rest for everything that locks the worker's herder. Connect's pause and resume lock the store of the configurations first and
// then the herder, and the other calls lock them in the other order. So a pause beside another call can lock both for good, and then the
// worker answers nothing any more (seen with Kafka 4.3.0; KAFKA-16051 is the same for the start of a worker). change keeps them apart.
func (w *ConnectWorker) inTurn(ctx context.Context, method, path string, body, into any) error {
	w.herder.RLock()
	defer w.herder.RUnlock()
	return w.rest(ctx, method, path, body, into)
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
	req, err := http.NewRequestWithContext(ctx, method, "http://"+w.Address()+path, &in)
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
