package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walpost/walpost/internal/testenv"
)

// An issuer is a token endpoint. Its tokens are unsecured JWTs, which Kafka accepts unless it is told to check signatures.
type issuer struct {
	url string

	mu     sync.Mutex
	sub    string        // the principal of the next token
	valid  time.Duration // of the next token
	down   bool
	issued int
}

func newIssuer(t *testing.T, sub string, valid time.Duration) *issuer {
	i := &issuer{sub: sub, valid: valid}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		user, password, _ := r.BasicAuth()
		switch {
		case user != "relay" || password != "hunter2":
			w.WriteHeader(http.StatusUnauthorized)
		case i.down:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			i.issued++
			fmt.Fprintf(w, `{"access_token": %q, "token_type": "bearer", "expires_in": %d}`, testenv.Token(i.sub, i.valid), int(i.valid/time.Second))
		}
	}))
	t.Cleanup(server.Close)
	i.url = server.URL
	return i
}

// set changes what the issuer does next, and returns how many tokens it has issued.
func (i *issuer) set(change func()) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
	return i.issued
}

// A relay logs in again before its tokens end, all the time, under load. An endpoint that is down, a token that names another principal
// and one that may write nothing hold it up at most: nothing is lost, and each key keeps its order.
func TestARelayOutlivesItsTokens(t *testing.T) {
	t.Parallel()
	kafka, at := testenv.KafkaListeners(t, map[string]string{"ASKED": "SASL_PLAINTEXT"}, map[string]string{
		"listener.name.asked.sasl.enabled.mechanisms":      "OAUTHBEARER",
		"listener.name.asked.oauthbearer.sasl.jaas.config": testenv.Bearer,
		// Without it, Kafka lets a session live on after its token.
		"listener.name.asked.oauthbearer.connections.max.reauth.ms": "60000",
	})
	adm := kadm.NewClient(kafka.Client(t))
	for _, principal := range []string{"User:one", "User:two"} {
		acl := kadm.NewACLs().Topics("*").Clusters().Allow(principal).AllowHosts("*").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpAll)
		made, err := adm.CreateACLs(t.Context(), acl)
		for _, m := range made {
			if err == nil {
				err = m.Err
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pg := testenv.Postgres(t, "17")
	s := newSetting(t, pg, pg.Database(t), kafka)
	i := newIssuer(t, "one", 5*time.Second)
	s.yaml = fmt.Sprintf(`name: %s
source: {dsn: %q, table: public.outbox, slot: %s}
router: {route.topic.replacement: "%s${routedByValue}"}
kafka: {brokers: [%s], sasl: {mechanism: OAUTHBEARER, token_endpoint_url: %q, client_id: relay, client_secret: hunter2}}
`, s.name, s.dsn, s.slot(), s.prefix, at["ASKED"], i.url)
	s.pause = 50 * time.Millisecond
	s.counters(pg)
	w := s.follow()
	r := s.startReady()
	c := s.crowd(8, 3)

	first := i.set(func() {})
	eventually(t, time.Minute, "three more tokens", func() bool { return i.set(func() {}) >= first+3 || r.ended() })
	w.more(t, time.Minute, 20)

	// A broker accepts no other principal on a connection.
	i.set(func() { i.sub = "two" })
	first = i.set(func() {})
	eventually(t, time.Minute, "three tokens of another principal", func() bool { return i.set(func() {}) >= first+3 || r.ended() })
	w.more(t, time.Minute, 20)

	i.set(func() { i.down = true })
	r.notReady(time.Minute, "503 Service Unavailable")
	i.set(func() { i.down = false })
	eventually(t, time.Minute, "ready after the endpoint is back", func() bool { return r.ready() || r.ended() })
	w.more(t, time.Minute, 20)

	i.set(func() { i.sub = "nobody" })
	r.notReady(time.Minute, "not authorized")
	i.set(func() { i.sub = "one" })
	eventually(t, time.Minute, "ready after the principal is back", func() bool { return r.ready() || r.ended() })
	w.more(t, time.Minute, 20)

	c.stop()
	s.noLoss(w, time.Minute)
	r.stopsClean()
	if log := r.log.String(); strings.Contains(log, "hunter2") || strings.Contains(log, "eyJ") || strings.Contains(log, base64.RawURLEncoding.EncodeToString([]byte(`{"sub":`))) {
		t.Errorf("the log has a secret:\n%s", log)
	}
}
