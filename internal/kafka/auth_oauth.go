package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"

	"github.com/walpost/walpost/internal/conf"
)

func (s *SASL) validateTokens(found *conf.Problems, needs func(field string, have ...string)) {
	var ways []string
	for _, way := range []struct {
		field string
		set   bool
	}{
		{"token", s.Token != "" || s.TokenFile != ""},
		{"token_command", len(s.TokenCommand) > 0},
		{"token_endpoint_url", s.TokenEndpointURL != ""},
	} {
		if way.set {
			ways = append(ways, way.field)
		}
	}
	switch {
	case len(ways) == 0:
		found.Add("kafka.sasl.token", conf.Required, "for OAUTHBEARER, or token_command, or token_endpoint_url", nil)
	case len(ways) > 1:
		found.Add("kafka.sasl."+ways[1], conf.Contradicts, "kafka.sasl."+ways[0]+": set only one of the two", nil)
	case s.TokenEndpointURL != "":
		if u, err := url.Parse(s.TokenEndpointURL); err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
			found.Add("kafka.sasl.token_endpoint_url", conf.MustBe, "an https or http URL without a user", nil)
		}
		needs("client_id", s.ClientID)
		needs("client_secret", string(s.ClientSecret), s.ClientSecretFile)
	}
}

// bearer is the mechanism OAUTHBEARER. The client logs in again before the session of a token ends, and asks for a token then.
type bearer struct {
	SASL

	mu    sync.Mutex
	token string    // of the endpoint, "" for none
	until time.Time // when it is worth another one
	ends  time.Time // when it expires
}

func (*bearer) Name() string { return "OAUTHBEARER" }

func (b *bearer) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	token, err := b.newest(ctx)
	if err != nil {
		return nil, nil, err
	}
	session, first, err := oauth.Auth{Token: token, Extensions: b.Extensions}.AsMechanism().Authenticate(ctx, host)
	return bearerSession{session, b, token}, first, err
}

func (b *bearer) newest(ctx context.Context) (string, error) {
	switch {
	case len(b.TokenCommand) > 0:
		token, err := conf.FromCommand(ctx, b.TokenCommand)
		if err != nil {
			err = fmt.Errorf("kafka.sasl.token_command: %w", err)
		}
		return token, err
	case b.TokenEndpointURL == "":
		return b.Token.Or(b.TokenFile)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.token != "" && now.Before(b.until) {
		return b.token, nil
	}
	token, valid, err := b.ask(ctx)
	if err != nil {
		if b.token != "" && now.Before(b.ends) {
			return b.token, nil
		}
		return "", fmt.Errorf("token from %s: %w", b.TokenEndpointURL, err)
	}
	// A token in the last fifth of its life would only be good for a short session.
	b.token, b.until, b.ends = token, now.Add(valid*4/5), now.Add(valid)
	return token, nil
}

const (
	tokenTimeout   = 10 * time.Second
	maxTokenAnswer = 1 << 20
)

// ask gets a token as a client (RFC 6749, 4.4), and how long it is valid: 0 if the endpoint doesn't say.
func (b *bearer) ask(ctx context.Context) (token string, valid time.Duration, err error) {
	secret, err := b.ClientSecret.Or(b.ClientSecretFile)
	if err != nil {
		return "", 0, fmt.Errorf("kafka.sasl.client_secret_file: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	form := url.Values{"grant_type": {"client_credentials"}}
	if b.Scope != "" {
		form.Set("scope", b.Scope)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.TokenEndpointURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.SetBasicAuth(url.QueryEscape(b.ClientID), url.QueryEscape(secret))
	client := http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		// The request has a secret, which no redirect may take elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		var cause *url.Error
		if errors.As(err, &cause) { // the URL is named already
			err = cause.Err
		}
		return "", 0, err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	var answer struct {
		AccessToken string      `json:"access_token"`
		ExpiresIn   json.Number `json:"expires_in"`
		Code        string      `json:"error"`
		Description string      `json:"error_description"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxTokenAnswer)).Decode(&answer)
	if resp.StatusCode != http.StatusOK || err != nil || answer.AccessToken == "" {
		return "", 0, errors.New(strings.TrimRight(fmt.Sprintf("%s: %s: %s", resp.Status, answer.Code, answer.Description), ": "))
	}
	seconds, _ := answer.ExpiresIn.Float64() // 0 without it
	return answer.AccessToken, time.Duration(seconds * float64(time.Second)), nil
}

// bearerSession is one login. A token that a broker refuses is not used again.
type bearerSession struct {
	sasl.Session
	from  *bearer
	token string
}

func (s bearerSession) Challenge(answer []byte) (done bool, next []byte, err error) {
	if len(answer) == 0 {
		return s.Session.Challenge(answer)
	}
	s.from.mu.Lock()
	defer s.from.mu.Unlock()
	if s.from.token == s.token {
		s.from.token = ""
	}
	var why struct{ Status string }  // RFC 7628, 3.2.2
	_ = json.Unmarshal(answer, &why) // another text says nothing
	return false, nil, fmt.Errorf("the broker refuses the token (%s): %w", why.Status, kerr.SaslAuthenticationFailed)
}
