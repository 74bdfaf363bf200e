package kafka

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// A token endpoint that counts its tokens, and notes what it was asked.
type endpoint struct {
	url   string
	asked []string
	fails bool
	life  string // expires_in
	token func() string
}

func newEndpoint(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{life: "3600"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm() // a wrong form is an empty one
		user, password, _ := r.BasicAuth()
		e.asked = append(e.asked, r.Method+" "+user+":"+password+" "+r.PostForm.Encode())
		if e.fails {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error": "invalid_client", "error_description": "no such client"}`)
			return
		}
		token := fmt.Sprint("token", len(e.asked))
		if e.token != nil {
			token = e.token()
		}
		fmt.Fprintf(w, `{"access_token": %q, "token_type": "bearer", "expires_in": %s}`, token, e.life)
	}))
	t.Cleanup(server.Close)
	e.url = server.URL
	return e
}

func (e *endpoint) sasl() SASL {
	return SASL{Mechanism: "OAUTHBEARER", TokenEndpointURL: e.url, ClientID: "wal:post", ClientSecret: "s+ cret", Scope: "kafka write"}
}

func login(t *testing.T, b *bearer) (sent string, session bearerSession, err error) {
	t.Helper()
	s, first, err := b.Authenticate(t.Context(), "k:9092")
	if err != nil {
		return "", bearerSession{}, err
	}
	return strings.Trim(strings.TrimPrefix(string(first), "n,,\x01auth=Bearer "), "\x01"), s.(bearerSession), nil
}

func TestATokenIsRenewedBeforeItExpires(t *testing.T) {
	e := newEndpoint(t)
	s := e.sasl()
	b := s.mechanism().(*bearer)
	want := func(token string) bearerSession {
		t.Helper()
		got, session, err := login(t, b)
		if got != token || (err == nil) != (token != "") {
			t.Errorf("logged in with %q, %v; must be %q", got, err, token)
		}
		return session
	}
	want("token1")
	if left := time.Until(b.until); left < 45*time.Minute || left > 48*time.Minute {
		t.Errorf("a token of an hour is renewed after %s", left)
	}
	session := want("token1")
	b.until = time.Now() // four fifths of its life are over
	e.fails = true
	want("token1") // it's still valid
	e.fails = false
	want("token3")
	// A broker refuses it.
	if _, _, err := session.Challenge([]byte(`{"status":"invalid_token"}`)); !errors.Is(err, kerr.SaslAuthenticationFailed) || !strings.Contains(err.Error(), "invalid_token") {
		t.Errorf("refused: %v", err)
	}
	want("token3") // the one that was refused is another one
	if done, _, err := want("token3").Challenge(nil); !done || err != nil {
		t.Errorf("accepted: %v, %v", done, err)
	}
	if _, _, err := want("token3").Challenge([]byte(`{"status":"invalid_token"}`)); err == nil {
		t.Error("refused without an error")
	}
	want("token4")
	b.ends, b.until, e.fails = time.Now(), time.Now(), true
	_, _, err := login(t, b)
	if err == nil || !strings.Contains(err.Error(), "401 Unauthorized: invalid_client: no such client") || strings.Contains(err.Error(), "cret") {
		t.Errorf("the endpoint refuses: %v", err)
	}
	e.fails, e.life = false, `"30"` // some endpoints write a text
	want("token6")
	want("token6")
	for _, asked := range e.asked {
		if asked != "POST wal%3Apost:s%2B+cret grant_type=client_credentials&scope=kafka+write" {
			t.Errorf("asked %q", asked)
		}
	}
}

// Without expires_in nobody knows how long a token is valid.
func TestATokenWithoutAnEndIsUsedOnce(t *testing.T) {
	e := newEndpoint(t)
	e.life = "null"
	s := e.sasl()
	b := s.mechanism().(*bearer)
	for _, want := range []string{"token1", "token2"} {
		if got, _, err := login(t, b); got != want || err != nil {
			t.Errorf("logged in with %q, %v; must be %q", got, err, want)
		}
	}
}

// The secret of the client goes to nobody but the endpoint.
func TestTheSecretOfAClientFollowsNoRedirect(t *testing.T) {
	other := newEndpoint(t)
	first := httptest.NewServer(http.RedirectHandler(other.url, http.StatusTemporaryRedirect))
	t.Cleanup(first.Close)
	s := other.sasl()
	s.TokenEndpointURL = first.URL
	if _, _, err := login(t, s.mechanism().(*bearer)); err == nil || !strings.Contains(err.Error(), "307") || len(other.asked) > 0 {
		t.Errorf("%v, asked %q", err, other.asked)
	}
}

func TestATokenComesFromOnePlace(t *testing.T) {
	e := newEndpoint(t)
	cfg := func(change func(s *SASL)) Config {
		s := e.sasl()
		change(&s)
		return Config{Brokers: []string{"k:9092"}, SASL: s}
	}
	for want, change := range map[string]func(s *SASL){
		"": func(*SASL) {},
		"kafka.sasl.token: is required for OAUTHBEARER, or token_command, or token_endpoint_url":       func(s *SASL) { *s = SASL{Mechanism: "OAUTHBEARER"} },
		"kafka.sasl.token_endpoint_url: contradicts kafka.sasl.token: set only one of the two":         func(s *SASL) { s.Token = "t" },
		"kafka.sasl.token_command: contradicts kafka.sasl.token: set only one of the two":              func(s *SASL) { s.Token, s.TokenCommand, s.TokenEndpointURL = "t", []string{"x"}, "" },
		"kafka.sasl.token_endpoint_url: contradicts kafka.sasl.token_command: set only one of the two": func(s *SASL) { s.TokenCommand = []string{"x"} },
		"kafka.sasl.client_id: is required for OAUTHBEARER":                                            func(s *SASL) { s.ClientID = "" },
		"kafka.sasl.client_secret: is required for OAUTHBEARER":                                        func(s *SASL) { s.ClientSecret = "" },
		"kafka.sasl.token_endpoint_url: must be an https or http URL without a user":                   func(s *SASL) { s.TokenEndpointURL = "https://u:hunter2@login/token" },
	} {
		var got string
		if found := cfg(change).Validate(); found != nil {
			got = found.Error()
		}
		if got != want {
			t.Errorf("%q, must be %q", got, want)
		}
	}
}
