//go:build linux || darwin

package parity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// connectorTimeout is for a worker that runs dozens of connectors on a machine under load.
const connectorTimeout = 2 * time.Minute

// A ConnectorStatus is what the worker says about a connector and its one task.
type ConnectorStatus struct {
	Connector string // RUNNING, PAUSED, STOPPED or FAILED; empty if it does not exist
	Task      string // the same
	Trace     string // of the failure
}

// A ConnectorOffset is a stored offset of a connector. The partition of Debezium's Postgres
// connector is {"server": topic.prefix}.
type ConnectorOffset struct {
	Partition map[string]any `json:"partition"`
	Offset    map[string]any `json:"offset"`
}

// TryPut creates or changes a connector. If the worker refuses the configuration, the error is a
// *RESTError.
func (w *ConnectWorker) TryPut(ctx context.Context, name string, config map[string]string) error {
	err := w.inTurn(ctx, http.MethodPut, connectorPath(name)+"/config", config, nil)
	var refusal *RESTError
	if errors.As(err, &refusal) && refusal.Status == http.StatusInternalServerError {
		// If Debezium finds a wrong option, it leaves others unvalidated, and Connect 4.3 fails
		// while it writes the message.
		if reasons, _ := w.invalid(ctx, name, config); len(reasons) > 0 {
			return &RESTError{Status: http.StatusBadRequest, Message: strings.Join(reasons, "; ")}
		}
	}
	return err
}

// invalid returns what is wrong with a configuration.
func (w *ConnectWorker) invalid(ctx context.Context, name string, config map[string]string) (reasons []string, err error) {
	config = maps.Clone(config)
	config["name"] = name
	class := config["connector.class"]
	var answer struct {
		Configs []struct {
			Value *struct{ Errors []string }
		}
	}
	path := "/connector-plugins/" + url.PathEscape(class[strings.LastIndexByte(class, '.')+1:]) + "/config/validate"
	if err := w.rest(ctx, http.MethodPut, path, config, &answer); err != nil {
		return nil, err
	}
	for _, c := range answer.Configs {
		if c.Value != nil {
			reasons = append(reasons, c.Value.Errors...)
		}
	}
	return reasons, nil
}

// Put is TryPut for a test that needs the connector. The connector starts at once.
func (w *ConnectWorker) Put(t testing.TB, name string, config map[string]string) {
	t.Helper()
	w.must(t, "put connector "+name, func(ctx context.Context) error { return w.TryPut(ctx, name, config) })
}

// Delete removes a connector and returns when it has released its slot. Its offsets stay.
func (w *ConnectWorker) Delete(t testing.TB, name string) {
	t.Helper()
	w.must(t, "delete connector "+name, func(ctx context.Context) error { return w.TryDelete(ctx, name) })
}

// TryDelete is Delete with an error.
func (w *ConnectWorker) TryDelete(ctx context.Context, name string) error {
	return w.inTurn(ctx, http.MethodDelete, connectorPath(name), nil, nil)
}

// Pause stops reading records from a connector's task, which keeps its slot.
func (w *ConnectWorker) Pause(t testing.TB, name string) { w.change(t, name, "pause", "PAUSED") }

// StopConnector ends a connector's task, and returns when the task has released its slot.
func (w *ConnectWorker) StopConnector(t testing.TB, name string) {
	w.change(t, name, "stop", "STOPPED")
}

// Resume continues a paused or stopped connector.
func (w *ConnectWorker) Resume(t testing.TB, name string) { w.change(t, name, "resume", "RUNNING") }

func (w *ConnectWorker) change(t testing.TB, name, verb, state string) {
	t.Helper()
	w.herder.Lock()
	defer w.herder.Unlock()
	w.must(t, verb+" connector "+name, func(ctx context.Context) error {
		if err := w.rest(ctx, http.MethodPut, connectorPath(name)+"/"+verb, nil, nil); err != nil {
			return err
		}
		return w.until(ctx, name, func(s ConnectorStatus) (bool, error) {
			return s.Connector == state && (s.Task == state || state == "STOPPED" && s.Task == ""), nil
		})
	})
}

// Status returns the status of a connector. The status is zero if the connector does not exist.
func (w *ConnectWorker) Status(ctx context.Context, name string) (ConnectorStatus, error) {
	var answer struct {
		Connector struct{ State, Trace string }
		Tasks     []struct{ State, Trace string }
	}
	err := w.rest(ctx, http.MethodGet, connectorPath(name)+"/status", nil, &answer)
	var refusal *RESTError
	if errors.As(err, &refusal) && refusal.Status == http.StatusNotFound {
		return ConnectorStatus{}, nil
	}
	if err != nil {
		return ConnectorStatus{}, err
	}
	s := ConnectorStatus{Connector: answer.Connector.State, Trace: answer.Connector.Trace}
	if len(answer.Tasks) > 0 {
		s.Task = answer.Tasks[0].State
		s.Trace += answer.Tasks[0].Trace
	}
	return s, nil
}

// TryStreams waits until a connector's task runs and its slot, in the database of dsn, is in use.
// Then the connector reads the WAL. If the task fails, the error has the reason.
func (w *ConnectWorker) TryStreams(ctx context.Context, name, dsn, slot string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it only ran queries
	return w.until(ctx, name, func(s ConnectorStatus) (bool, error) {
		if s.Task != "RUNNING" {
			return false, nil
		}
		var active bool
		err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active)", slot).Scan(&active)
		return active, err
	})
}

// Streams is TryStreams for a test that needs the stream.
func (w *ConnectWorker) Streams(t testing.TB, name, dsn, slot string) {
	t.Helper()
	w.must(t, "connector "+name+" streams", func(ctx context.Context) error { return w.TryStreams(ctx, name, dsn, slot) })
}

// A ConnectorFailure is a connector or task in the state FAILED.
type ConnectorFailure struct {
	Name  string
	Trace string
}

func (e *ConnectorFailure) Error() string {
	return fmt.Sprintf("connector %s has failed: %s", e.Name, e.Trace)
}

// until reads the status until done returns true or the connector has failed.
func (w *ConnectWorker) until(ctx context.Context, name string, done func(ConnectorStatus) (bool, error)) error {
	for {
		s, err := w.Status(ctx, name)
		if err != nil {
			return err
		}
		if s.Connector == "FAILED" || s.Task == "FAILED" {
			return &ConnectorFailure{Name: name, Trace: s.Trace}
		}
		ok, err := done(s)
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: connector %q, task %q", context.Cause(ctx), s.Connector, s.Task)
		}
	}
}

// Offsets returns the offsets that a connector has stored. There are none before the first record.
func (w *ConnectWorker) Offsets(t testing.TB, name string) []ConnectorOffset {
	t.Helper()
	var offsets []ConnectorOffset
	w.must(t, "offsets of connector "+name, func(ctx context.Context) (err error) {
		offsets, err = w.TryOffsets(ctx, name)
		return err
	})
	return offsets
}

// TryOffsets is Offsets with an error.
func (w *ConnectWorker) TryOffsets(ctx context.Context, name string) ([]ConnectorOffset, error) {
	var answer struct{ Offsets []ConnectorOffset }
	err := w.inTurn(ctx, http.MethodGet, connectorPath(name)+"/offsets", nil, &answer)
	return answer.Offsets, err
}

// ResetOffsets deletes the stored offsets of a connector. The connector must be stopped.
func (w *ConnectWorker) ResetOffsets(t testing.TB, name string) {
	t.Helper()
	w.must(t, "reset offsets of connector "+name, func(ctx context.Context) error {
		return w.inTurn(ctx, http.MethodDelete, connectorPath(name)+"/offsets", nil, nil)
	})
}

func (w *ConnectWorker) must(t testing.TB, step string, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), connectorTimeout)
	defer cancel()
	if err := do(ctx); err != nil {
		t.Fatalf("%s: %v", step, err)
	}
}

func connectorPath(name string) string { return "/connectors/" + url.PathEscape(name) }
