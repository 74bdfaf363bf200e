//go:build linux || darwin

package testenv

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
	Connector string // RUNNING, PAUSED, STOPPED, FAILED; empty: there is none
	Task      string // the same; empty: there is none
	Trace     string // of the failure
}

// A ConnectorOffset is what a connector has stored about where it is. Of Debezium's Postgres connector the partition is
// {"server": topic.prefix}.
type ConnectorOffset struct {
	Partition map[string]any `json:"partition"`
	Offset    map[string]any `json:"offset"`
}

// TryPut makes or changes a connector. A refusal of its configuration is a *RESTError.
func (w *ConnectWorker) TryPut(ctx context.Context, name string, config map[string]string) error {
	err := w.rest(ctx, http.MethodPut, connectorPath(name)+"/config", config, nil)
	var refusal *RESTError
	if errors.As(err, &refusal) && refusal.Status == http.StatusInternalServerError {
		// Connect 4.3 trips, while it writes the message, over options that Debezium did not validate after it found one wrong.
		if reasons, _ := w.invalid(ctx, name, config); len(reasons) > 0 {
			return &RESTError{Status: http.StatusBadRequest, Message: strings.Join(reasons, "; ")}
		}
	}
	return err
}

// invalid asks what is wrong with a configuration.
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

// Put makes or changes a connector, which starts at once.
func (w *ConnectWorker) Put(t testing.TB, name string, config map[string]string) {
	t.Helper()
	w.must(t, "put connector "+name, func(ctx context.Context) error { return w.TryPut(ctx, name, config) })
}

// Delete removes a connector and returns when it has let go of its slot. Its offsets stay.
func (w *ConnectWorker) Delete(t testing.TB, name string) {
	t.Helper()
	w.must(t, "delete connector "+name, func(ctx context.Context) error { return w.TryDelete(ctx, name) })
}

// TryDelete is Delete for what is no test.
func (w *ConnectWorker) TryDelete(ctx context.Context, name string) error {
	return w.rest(ctx, http.MethodDelete, connectorPath(name), nil, nil)
}

// Pause keeps a connector's task, with its slot, but takes no more records from it.
func (w *ConnectWorker) Pause(t testing.TB, name string) { w.change(t, name, "pause", "PAUSED") }

// StopConnector ends a connector's task, so that it lets go of its slot, and returns when it has.
func (w *ConnectWorker) StopConnector(t testing.TB, name string) {
	w.change(t, name, "stop", "STOPPED")
}

// Resume lets a paused or stopped connector go on.
func (w *ConnectWorker) Resume(t testing.TB, name string) { w.change(t, name, "resume", "RUNNING") }

func (w *ConnectWorker) change(t testing.TB, name, verb, state string) {
	t.Helper()
	w.must(t, verb+" connector "+name, func(ctx context.Context) error {
		if err := w.rest(ctx, http.MethodPut, connectorPath(name)+"/"+verb, nil, nil); err != nil {
			return err
		}
		return w.until(ctx, name, func(s ConnectorStatus) (bool, error) {
			return s.Connector == state && (s.Task == state || state == "STOPPED" && s.Task == ""), nil
		})
	})
}

// Status says how a connector is. One that is not there has the zero status.
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

// TryStreams waits until a connector's task runs and its slot, in the database of dsn, is in use: it reads the WAL from then on. A task
// that fails is an error with the reason.
func (w *ConnectWorker) TryStreams(ctx context.Context, name, dsn, slot string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it was only asked
	return w.until(ctx, name, func(s ConnectorStatus) (bool, error) {
		if s.Task != "RUNNING" {
			return false, nil
		}
		var active bool
		err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active)", slot).Scan(&active)
		return active, err
	})
}

// Streams is TryStreams for a test that needs it.
func (w *ConnectWorker) Streams(t testing.TB, name, dsn, slot string) {
	t.Helper()
	w.must(t, "connector "+name+" streams", func(ctx context.Context) error { return w.TryStreams(ctx, name, dsn, slot) })
}

// Fails waits until a connector or its task has failed, and returns the stack trace.
func (w *ConnectWorker) Fails(t testing.TB, name string) (trace string) {
	t.Helper()
	w.must(t, "connector "+name+" fails", func(ctx context.Context) error {
		err := w.until(ctx, name, func(ConnectorStatus) (bool, error) { return false, nil })
		var failed *ConnectorFailure
		if errors.As(err, &failed) {
			trace = failed.Trace
			return nil
		}
		return err
	})
	return trace
}

// A ConnectorFailure is a connector or task in the state FAILED.
type ConnectorFailure struct {
	Name  string
	Trace string
}

func (e *ConnectorFailure) Error() string {
	return fmt.Sprintf("connector %s has failed: %s", e.Name, e.Trace)
}

// until asks for the status until done says so or the connector has failed.
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

// Offsets returns what a connector has stored, as of the last flush; none before the first record.
func (w *ConnectWorker) Offsets(t testing.TB, name string) []ConnectorOffset {
	t.Helper()
	var offsets []ConnectorOffset
	w.must(t, "offsets of connector "+name, func(ctx context.Context) (err error) {
		offsets, err = w.TryOffsets(ctx, name)
		return err
	})
	return offsets
}

// TryOffsets is Offsets for what is no test.
func (w *ConnectWorker) TryOffsets(ctx context.Context, name string) ([]ConnectorOffset, error) {
	var answer struct{ Offsets []ConnectorOffset }
	err := w.rest(ctx, http.MethodGet, connectorPath(name)+"/offsets", nil, &answer)
	return answer.Offsets, err
}

// SetOffsets replaces what a connector has stored. The connector must be stopped.
func (w *ConnectWorker) SetOffsets(t testing.TB, name string, offsets []ConnectorOffset) {
	t.Helper()
	w.must(t, "set offsets of connector "+name, func(ctx context.Context) error {
		return w.rest(ctx, http.MethodPatch, connectorPath(name)+"/offsets", map[string]any{"offsets": offsets}, nil)
	})
}

// ResetOffsets forgets what a connector has stored. The connector must be stopped.
func (w *ConnectWorker) ResetOffsets(t testing.TB, name string) {
	t.Helper()
	w.must(t, "reset offsets of connector "+name, func(ctx context.Context) error {
		return w.rest(ctx, http.MethodDelete, connectorPath(name)+"/offsets", nil, nil)
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
