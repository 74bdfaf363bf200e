// Package registry finds the ids of schemas in a registry with Confluent's API, and checks documents with the schemas that it has.
package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/backoff"
	"github.com/walpost/walpost/internal/wait"
)

const askTimeout = 10 * time.Second // for one answer, of all registries together

var askAgain = backoff.Backoff{Min: 250 * time.Millisecond, Max: 10 * time.Second}

// A Client asks for schemas and their ids. Converters remember them, so it asks once for each subject and
// schema. Until Produce or Deliver, it only looks, and registers nothing: a missing schema has the id 0.
type Client struct {
	api      *sr.Client
	http     *http.Client
	produces bool
	missing  map[question]bool // what a Client that only looks need not ask again: converters don't remember the id 0

	background context.Context // nil: SchemaID waits for the answer
	log        *slog.Logger    // with background
	outdated   atomic.Int32    // subjects whose latest version is asked for in vain
	pending    map[question]*pending
	latests    map[string]*latest // by subject
	asking     sync.WaitGroup
}

// A question is what a Client asks.
type question struct {
	subject, schema, format string
	register, latest        bool
}

// New returns a Client. It connects nowhere.
func New(c Config) (*Client, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: askTimeout}
	if c.TLS != nil {
		t := *c.TLS
		transport.DialTLSContext = t.Dial
	}
	// No redirect may take the password elsewhere.
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	// The next registry is asked if one doesn't answer in time, or is out of order.
	if client.Timeout = askTimeout; len(c.URLs) > 1 {
		client.Timeout, client.Transport = askTimeout/time.Duration(len(c.URLs)), failing{transport}
	}
	api, err := sr.NewClient(sr.URLs(c.URLs...), sr.HTTPClient(client), sr.UserAgent("walpost"), sr.PreReq(func(req *http.Request) error {
		if c.Username == "" {
			return nil
		}
		password, err := c.Password.Or(c.PasswordFile)
		if err != nil {
			return fmt.Errorf("schema_registry.password_file: %w", err)
		}
		req.SetBasicAuth(c.Username, password)
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("schema registry: %w", err)
	}
	return &Client{api: api, http: client, missing: map[question]bool{}, pending: map[question]*pending{}, latests: map[string]*latest{}}, nil
}

// A failing transport makes an error of the answer of a server that is out of order. Otherwise sr.Client takes it for the answer, and asks
// no other server.
type failing struct{ *http.Transport }

func (f failing) RoundTrip(req *http.Request) (*http.Response, error) {
	answer, err := f.Transport.RoundTrip(req)
	if err != nil {
		return answer, err
	}
	body, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close() // it was read
	if answer.Body = io.NopCloser(bytes.NewReader(body)); err != nil || answer.StatusCode < http.StatusInternalServerError {
		return answer, err
	}
	body = body[:min(500, len(body))]
	refusal := &sr.ResponseError{StatusCode: answer.StatusCode, Raw: bytes.TrimSpace(body), Message: answer.Status}
	if err := json.Unmarshal(body, refusal); err != nil && len(refusal.Raw) > 0 { // no JSON, as of a proxy
		refusal.Message += ": " + string(refusal.Raw)
	}
	return nil, refusal
}

// Produce says whether ids are real ones from now on, for a command that writes records: only then are schemas registered.
func (c *Client) Produce(writes bool) {
	c.produces = writes
	clear(c.missing)
}

// Deliver is Produce for a loop that must not wait: SchemaID returns an error with the method Ready at once, and asks in the
// background until it has an answer or ctx ends. log gets what nothing waits for. The caller must call the function that Deliver
// returns.
func (c *Client) Deliver(ctx context.Context, log *slog.Logger) (stop func()) {
	c.Produce(true)
	c.log = log
	var end context.CancelFunc
	c.background, end = context.WithCancel(ctx)
	return func() {
		end()
		c.asking.Wait()
		c.http.CloseIdleConnections()
	}
}

// SchemaID returns the id of a schema in a subject. With register, it registers the schema. Otherwise
// with latest, it is the id of the subject's latest version, which must have the same encoding. format
// is AVRO, JSON or PROTOBUF. One goroutine at a time calls it.
func (c *Client) SchemaID(subject, schema, format string, register, latest bool) (uint32, error) {
	q := question{subject, schema, format, register, latest}
	if c.background == nil {
		if c.missing[q] {
			return 0, nil
		}
		id, err := c.ask(context.Background(), q)
		if err != nil {
			err = fault.Retry(err)
		}
		return id, err
	}
	p := c.pending[q]
	if p == nil {
		var id uint32
		p = c.begin(subject, func(ctx context.Context) (err error) { id, err = c.ask(ctx, q); return err })
		p.id = &id
		c.pending[q] = p
	}
	if !p.Ready() {
		return 0, p
	}
	delete(c.pending, q)
	return *p.id, nil
}

// begin asks in the background until there is an answer.
func (c *Client) begin(subject string, ask func(ctx context.Context) error) *pending {
	p := &pending{subject: subject, done: make(chan struct{})}
	c.asking.Go(func() {
		for failures := 1; ; failures++ {
			err := ask(c.background)
			if err == nil {
				close(p.done)
				return
			}
			p.fail(err)
			if !wait.For(c.background, askAgain.Pause(failures)) {
				return
			}
		}
	})
	return p
}

// ask asks once.
func (c *Client) ask(ctx context.Context, q question) (uint32, error) {
	s := sr.Schema{Schema: q.schema}
	if err := s.Type.UnmarshalText([]byte(q.format)); err != nil {
		return 0, err
	}
	var id int
	var err error
	switch {
	case q.register && c.produces:
		if id, err = c.api.RegisterSchema(ctx, q.subject, s, -1, -1); status(err) == http.StatusConflict {
			return 0, c.incompatible(ctx, q, err)
		}
	case q.latest && !q.register:
		return c.latest(ctx, q)
	default:
		var found sr.SubjectSchema
		found, err = c.api.LookupSchema(ctx, q.subject, s)
		id = found.ID
	}
	if err != nil {
		return c.failed(q, err)
	}
	return uint32(id), nil
}

// latest is the id of the newest version.
func (c *Client) latest(ctx context.Context, q question) (uint32, error) {
	found, err := c.api.SchemaByVersion(ctx, q.subject, -1)
	if err != nil {
		return c.failed(q, err)
	}
	if same, err := q.sameEncoding(found.Schema); !same {
		return 0, &mismatch{subject: q.subject, version: found.Version, err: err}
	}
	return uint32(found.ID), nil
}

// failed is the answer if the registry has none. A command that writes nothing gets the id 0 for a
// schema that a relay would register.
func (c *Client) failed(q question, err error) (uint32, error) {
	switch {
	case status(err) != http.StatusNotFound:
	case q.register && !c.produces:
		if len(c.missing) >= keptSubjects {
			clear(c.missing)
		}
		c.missing[q] = true
		return 0, nil
	case !q.register:
		return 0, fault.WithHint(fmt.Errorf("schema registry: the schema is not registered in subject %q: %s", q.subject, strings.ReplaceAll(q.schema, "\n", " ")),
			"Register it, or set auto.register.schemas of the converter to true.")
	}
	return 0, told(fmt.Sprintf("subject %q: ", q.subject), err)
}

// Reach asks the registry something that needs no privilege of a subject, and has a short answer.
func (c *Client) Reach(ctx context.Context) error {
	if _, err := c.api.Subjects(sr.WithParams(ctx, sr.SubjectPrefix("walpost-check"))); err != nil {
		return told("", err)
	}
	return nil
}

// told is an error of the client in walpost's words, with a hint if the configuration is its cause.
func told(about string, err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = fmt.Errorf("%s %s: %w", e.Op, e.URL, e.Err)
	}
	code := status(err)
	err = fmt.Errorf("schema registry: %s%w", about, err)
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.WithHint(err, "Correct schema_registry.username and schema_registry.password or password_file. The user reads subjects, and registers schemas unless auto.register.schemas is false.")
	case http.StatusNotFound:
		return fault.WithHint(err, "schema_registry.urls must have the path of Confluent's API, such as /apis/ccompat/v7 for Apicurio Registry.")
	}
	return err
}

// status is the status of the answer that err is, and 0 if err is something else.
func status(err error) int {
	if e, ok := errors.AsType[*sr.ResponseError](err); ok {
		return e.StatusCode
	}
	return 0
}

// incompatible says more of a refusal.
func (c *Client) incompatible(ctx context.Context, q question, refusal error) error {
	e := &incompatible{subject: q.subject, rule: "unknown", err: refusal}
	for _, of := range []string{q.subject, sr.GlobalSubject} {
		// Apicurio Registry says NONE for a subject that has the global rule.
		if r := c.api.Compatibility(ctx, of)[0]; r.Err == nil && r.Level != sr.CompatNone {
			e.rule = r.Level.String()
			break
		}
	}
	if found, err := c.api.SchemaByVersion(ctx, q.subject, -1); err == nil {
		e.version = found.Version
	}
	return e
}

// sameEncoding reports whether values of the question's schema can be read with another one: in Avro
// they must differ at most in what has no influence on the encoding, in JSON in annotations, and in
// Protobuf in comments and spaces.
func (q *question) sameEncoding(s sr.Schema) (bool, error) {
	switch {
	case s.Type.String() != q.format:
		return false, fmt.Errorf("its format is %s", s.Type)
	case s.Schema == q.schema:
		return true, nil
	}
	canonical := map[sr.SchemaType]func(string) (string, error){
		sr.TypeAvro: canonicalAvro, sr.TypeJSON: canonicalJSON, sr.TypeProtobuf: canonicalProtobuf,
	}[s.Type]
	ours, err := canonical(q.schema)
	if err != nil {
		return false, err
	}
	theirs, err := canonical(s.Schema)
	return ours == theirs, err
}

func canonicalAvro(text string) (string, error) {
	s, err := avro.Parse(text, avro.WithLaxNames(nil)) // Java allows letters of every script
	if err != nil {
		return "", err
	}
	return string(s.Canonical()), nil
}

// canonicalJSON returns a JSON Schema without annotations, and with its members in order.
func canonicalJSON(text string) (string, error) {
	var schema any
	if err := json.Unmarshal([]byte(text), &schema); err != nil {
		return "", err
	}
	b, err := json.Marshal(validating(schema))
	return string(b), err
}

var annotations = []string{"$schema", "$id", "$comment", "title", "description", "default", "examples", "connect.type", "connect.version", "connect.parameters", "connect.index"}

// validating returns the part of a JSON Schema that validates.
func validating(schema any) any {
	switch s := schema.(type) {
	case []any:
		for i := range s {
			s[i] = validating(s[i])
		}
	case map[string]any:
		for _, name := range annotations {
			delete(s, name)
		}
		for name, part := range s {
			if fields, ok := part.(map[string]any); ok && name == "properties" { // a field may be called title
				for field := range fields {
					fields[field] = validating(fields[field])
				}
			} else {
				s[name] = validating(part)
			}
		}
	}
	return schema
}

// An incompatible is the refusal of a schema that does not fit those that the subject has.
type incompatible struct {
	subject string
	rule    string // the compatibility level, such as BACKWARD
	version int    // the newest one; the schema would have been the next
	err     error  // what the registry says
}

func (e *incompatible) Error() string {
	return fmt.Sprintf("schema registry: subject %q has the rule %s, and the schema for version %d is incompatible with version %d: %s",
		e.subject, e.rule, e.version+1, e.version, e.err)
}

func (e *incompatible) Unwrap() error { return e.err }

// Hint says what to do next.
func (e *incompatible) Hint() string {
	return "Give the subject a compatibility rule that accepts the schema, at least until walpost has registered it. walpost run waits for that."
}

// A mismatch is a latest version with another encoding than the records have.
type mismatch struct {
	subject string
	version int
	err     error // why one of the two is no valid schema; nil if both are valid
}

func (e *mismatch) Error() string {
	text := fmt.Sprintf("schema registry: version %d, the latest of subject %q, has another encoding than the records", e.version, e.subject)
	if e.err != nil {
		text += ": " + e.err.Error()
	}
	return text
}

func (e *mismatch) Unwrap() error { return e.err }

// Hint says what to do next.
func (e *mismatch) Hint() string {
	return "Register a version with the fields and types of the records, or set use.latest.version of the converter to false."
}

// A pending is the error for an answer that is not known yet.
type pending struct {
	subject string
	done    chan struct{} // closed when there is an answer
	id      *uint32       // of SchemaID

	mu     sync.Mutex
	failed error // the newest attempt
}

func (p *pending) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
}

// Stalled is why the newest attempt had no answer, or nil while the first one goes on.
func (p *pending) Stalled() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// Ready reports whether there is an answer now.
func (p *pending) Ready() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *pending) Error() string {
	if err := p.Stalled(); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("schema registry: there is no answer yet about subject %q", p.subject)
}
