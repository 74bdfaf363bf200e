package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/walpost/walpost/internal/fault"
)

const (
	latestAgain  = time.Minute // for how long a version is taken for the latest one
	keptSubjects = 1000
)

// A latest is what a Client knows of the latest version of a subject.
type latest struct {
	document
	asked   time.Time // when the registry was asked for it
	pending *pending  // for next; nil if nobody asks
	next    document
	doubt   []byte // what does not fit the version before, which may have been replaced by now
}

// A document is a JSON schema that can be used. The zero document is none.
type document struct {
	id, version int
	schema      *jsonschema.Schema
}

// Validate checks a JSON document against the latest version of a subject. why is "" if the document fits. Otherwise path is the JSON
// pointer to what does not fit. The Client asks for the latest version once a minute, and goes on with the former one until it has an
// answer. A document does not fit before a version that was asked for after its call says so. err is that of SchemaID.
func (c *Client) Validate(subject string, text []byte) (path, why string, err error) {
	l := c.latests[subject]
	if l == nil {
		if len(c.latests) >= keptSubjects {
			clear(c.latests)
		}
		l = &latest{}
		c.latests[subject] = l
	}
	if l.pending != nil && l.pending.Ready() {
		l.document, l.pending = l.next, nil
	}
	switch {
	case l.schema == nil:
		if err := c.renew(subject, l); err != nil {
			return "", "", err
		}
	case time.Since(l.asked) > latestAgain:
		if err := c.renew(subject, l); err != nil && c.background == nil {
			return "", "", err
		}
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return "", "is no JSON: " + err.Error(), nil
	}
	if path, ok := unwieldy(value); ok {
		return path, fmt.Sprintf("has at %s a number with an exponent beyond %d", quoted(path), maxExponent), nil
	}
	if path, why = unfit(l.schema.Validate(value)); why == "" {
		return "", "", nil
	}
	if l.pending != nil { // it was begun before this call, or it is about this text
		return "", "", l.pending
	}
	if l.doubt == nil || !bytes.Equal(l.doubt, text) {
		l.doubt = bytes.Clone(text)
		if err := c.renew(subject, l); err != nil {
			return "", "", err
		}
		path, why = unfit(l.schema.Validate(value))
	}
	if l.doubt = nil; why != "" {
		why = fmt.Sprintf("does not fit version %d of subject %q at %s: %s", l.version, subject, quoted(path), why)
	}
	return path, why, nil
}

// maxExponent is more than a double has. The validator computes with exact numbers, and panics on those with exponents beyond a million.
const maxExponent = 400

// unwieldy returns the JSON pointer to a number that cannot be checked.
func unwieldy(v any) (path string, found bool) {
	switch v := v.(type) {
	case json.Number:
		if at := strings.IndexAny(string(v), "eE"); at >= 0 {
			n, err := strconv.Atoi(string(v[at+1:]))
			return "", err != nil || n > maxExponent || n < -maxExponent
		}
	case []any:
		for i, elem := range v {
			if path, found := unwieldy(elem); found {
				return "/" + strconv.Itoa(i) + path, true
			}
		}
	case map[string]any:
		for name, elem := range v {
			if path, found := unwieldy(elem); found {
				return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name) + path, true
			}
		}
	}
	return "", false
}

// quoted is a path for people.
func quoted(path string) string {
	if path == "" {
		return "its root"
	}
	return path
}

// renew asks for the latest version. It returns a *pending if the answer comes later.
func (c *Client) renew(subject string, l *latest) error {
	if l.pending != nil {
		return l.pending
	}
	l.asked = time.Now()
	if c.background == nil {
		found, err := c.document(context.Background(), subject, l.id)
		if err != nil {
			return fault.Retry(err)
		}
		if found.schema != nil {
			l.document = found
		}
		return nil
	}
	known, failed, told := l.document, 0, false
	l.pending = c.begin(subject, func(ctx context.Context) error {
		found, err := c.document(ctx, subject, known.id)
		if l.next = known; found.schema != nil {
			l.next = found
		}
		switch {
		case err != nil && ctx.Err() == nil:
			// Without a former version, the relay waits, and logs why. Two failures are no outage yet.
			if failed++; failed == 3 && known.schema != nil {
				if told = true; c.outdated.Add(1) == 1 {
					fields := []any{"subject", subject, "version", known.version, "err", err}
					if hint := fault.Hint(err); hint != "" {
						fields = append(fields, "hint", hint)
					}
					c.log.Warn("latest schema is not known: events that fit the former one go on, and others wait", fields...)
				}
			}
		case told && err == nil && c.outdated.Add(-1) == 0:
			c.log.Info("latest schemas are known again")
		}
		return err
	})
	return l.pending
}

// document asks for the latest version of a subject. It returns the zero document for the version that has the id known.
func (c *Client) document(ctx context.Context, subject string, known int) (document, error) {
	found, err := c.api.SchemaByVersion(ctx, subject, -1)
	switch {
	case status(err) == http.StatusNotFound:
		return document{}, fault.WithHint(fmt.Errorf("schema registry: subject %q has no schema", subject),
			"Register a JSON schema, or set records.validate to none.")
	case err != nil:
		return document{}, told(fmt.Sprintf("subject %q: ", subject), err)
	case found.Type != sr.TypeJSON:
		return document{}, fault.WithHint(fmt.Errorf("schema registry: version %d, the latest of subject %q, is no JSON schema", found.Version, subject),
			"Register a JSON schema, or set records.validate to none.")
	case found.ID == known:
		return document{}, nil
	}
	schema, err := c.compile(ctx, found.Schema)
	if err != nil {
		return document{}, fault.WithHint(fmt.Errorf("schema registry: version %d, the latest of subject %q, cannot be used: %w", found.Version, subject, err),
			"Register a version that walpost can use, or set records.validate to none.")
	}
	return document{id: found.ID, version: found.Version, schema: schema}, nil
}

// compile fetches what a schema refers to, and nothing from elsewhere.
func (c *Client) compile(ctx context.Context, s sr.Schema) (*jsonschema.Schema, error) {
	const root = "registry:///schema"
	refs := references{}
	if err := c.collect(ctx, s, refs); err != nil {
		return nil, err
	}
	text, err := parse(s.Schema)
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft7) // Confluent's default
	compiler.UseLoader(refs)
	if err := compiler.AddResource(root, text); err != nil {
		return nil, err
	}
	return compiler.Compile(root)
}

// parse reads a schema. The compiler ignores a bound that is too large a number, and panics on such a multipleOf.
func parse(schema string) (any, error) {
	text, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if path, ok := unwieldy(text); ok {
		err = fmt.Errorf("it has at %s a number with an exponent beyond %d", quoted(path), maxExponent)
	}
	return text, err
}

// collect fetches the references of a schema, and theirs.
func (c *Client) collect(ctx context.Context, s sr.Schema, refs references) error {
	for _, ref := range s.References {
		if _, known := refs[ref.Name]; known {
			continue
		}
		found, err := c.api.SchemaByVersion(ctx, ref.Subject, ref.Version)
		if err != nil {
			return fmt.Errorf("its reference %q, version %d of subject %q: %w", ref.Name, ref.Version, ref.Subject, err)
		}
		if refs[ref.Name], err = parse(found.Schema.Schema); err != nil {
			return fmt.Errorf("its reference %q: %w", ref.Name, err)
		}
		if err := c.collect(ctx, found.Schema, refs); err != nil {
			return err
		}
	}
	return nil
}

// references are schemas by the names with which others refer to them.
type references map[string]any

// Load returns the reference that a URL means. The compiler has made the URL of the name and of the $id of the schema that uses it.
func (r references) Load(url string) (any, error) {
	longest := ""
	for name := range r {
		if (url == name || strings.HasSuffix(url, "/"+name)) && len(name) > len(longest) {
			longest = name
		}
	}
	if longest == "" {
		return nil, errors.New("the registry has no reference for it, and walpost does not fetch it from elsewhere")
	}
	return r[longest], nil
}

// unfit is what an error of the validation says, and where. Of several causes it is the one that is deepest in the document.
func unfit(err error) (path, why string) {
	if err == nil {
		return "", ""
	}
	e, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return "", err.Error()
	}
	deepest := *deepestOf(e)
	deepest.Causes = nil
	out := deepest.DetailedOutput()
	return out.InstanceLocation, out.Error.String()
}

func deepestOf(e *jsonschema.ValidationError) *jsonschema.ValidationError {
	var deepest *jsonschema.ValidationError
	for _, cause := range e.Causes {
		if d := deepestOf(cause); deepest == nil || len(d.InstanceLocation) > len(deepest.InstanceLocation) {
			deepest = d
		}
	}
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf: // no branch is the right one
		if deepest != nil && len(deepest.InstanceLocation) == len(e.InstanceLocation) {
			return e
		}
	}
	if deepest == nil {
		return e
	}
	return deepest
}
