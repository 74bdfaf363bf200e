package aws

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/walpost/walpost/internal/conf"
)

// Credentials are an access key, and a session token if they are temporary. They don't print themselves.
type Credentials struct {
	AccessKey, SecretKey, SessionToken string
	Expires                            time.Time // zero for never
}

func (c Credentials) String() string { return "credentials " + c.AccessKey }

// GoString is what %#v prints.
func (c Credentials) GoString() string { return c.String() }

// renewBefore is how long before they expire temporary credentials are replaced. AWS's SDKs do it five minutes before, too.
const renewBefore = 5 * time.Minute

const (
	timeout   = 10 * time.Second
	maxAnswer = 1 << 20
)

// FromEnvironment returns the credentials that the variables of AWS's SDKs lead to: access keys, a web identity (IRSA on EKS),
// or the endpoint of a container (EKS pod identity, ECS). Temporary ones are shared by all logins, and renewed before they
// expire. If that fails, the old ones are used as long as they are valid.
func FromEnvironment(ctx context.Context) (Credentials, error) { return process.credentials(ctx) }

var process = source{env: os.Getenv, now: time.Now}

// A source keeps the newest credentials of an environment.
type source struct {
	env func(string) string
	now func() time.Time

	mu     sync.Mutex
	newest Credentials
	from   string // what newest came from
}

func (s *source) credentials(ctx context.Context) (Credentials, error) {
	if key, secret := s.env("AWS_ACCESS_KEY_ID"), s.env("AWS_SECRET_ACCESS_KEY"); key != "" && secret != "" {
		return Credentials{AccessKey: key, SecretKey: secret, SessionToken: s.env("AWS_SESSION_TOKEN")}, nil
	}
	ask, from := s.webIdentity, "AssumeRoleWithWebIdentity for "+s.env("AWS_ROLE_ARN")
	if s.env("AWS_WEB_IDENTITY_TOKEN_FILE") == "" || s.env("AWS_ROLE_ARN") == "" {
		endpoint := s.env("AWS_CONTAINER_CREDENTIALS_FULL_URI")
		if path := s.env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); path != "" {
			endpoint = "http://169.254.170.2" + path
		}
		if endpoint == "" {
			return Credentials{}, errors.New("no AWS credentials: none of AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, " +
				"AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN, and AWS_CONTAINER_CREDENTIALS_FULL_URI is set")
		}
		ask, from = func(ctx context.Context) (Credentials, error) { return s.container(ctx, endpoint) }, endpoint
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, kept := s.now(), s.newest
	if s.from != from {
		kept = Credentials{}
	}
	if kept.AccessKey != "" && (kept.Expires.IsZero() || kept.Expires.Sub(now) > renewBefore) {
		return kept, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := ask(ctx)
	if err == nil && (c.AccessKey == "" || c.SecretKey == "") {
		err = errors.New("the answer has no credentials")
	}
	if err != nil {
		if kept.AccessKey != "" && kept.Expires.After(now) {
			return kept, nil
		}
		return Credentials{}, fmt.Errorf("AWS credentials from %s: %w", from, err)
	}
	s.newest, s.from = c, from
	return c, nil
}

// webIdentity exchanges the token of a file for credentials of a role. STS asks for no signature.
func (s *source) webIdentity(ctx context.Context) (Credentials, error) {
	token, err := conf.Secret("").Or(s.env("AWS_WEB_IDENTITY_TOKEN_FILE"))
	if err != nil {
		return Credentials{}, fmt.Errorf("AWS_WEB_IDENTITY_TOKEN_FILE: %w", err)
	}
	form := url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"},
		"RoleArn": {s.env("AWS_ROLE_ARN")}, "RoleSessionName": {cmp.Or(s.env("AWS_ROLE_SESSION_NAME"), "walpost")},
		"WebIdentityToken": {token},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.sts(), strings.NewReader(form.Encode()))
	if err != nil {
		return Credentials{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	code, body, err := do(req, http.ProxyFromEnvironment)
	if err != nil {
		return Credentials{}, err
	}
	var answer struct {
		Credentials struct {
			AccessKeyID     string `xml:"AccessKeyId"`
			SecretAccessKey string
			SessionToken    string
			Expiration      time.Time
		} `xml:"AssumeRoleWithWebIdentityResult>Credentials"`
		Error struct{ Code, Message string }
	}
	if err := xml.Unmarshal(body, &answer); code != http.StatusOK || err != nil {
		return Credentials{}, refused(code, answer.Error.Code, answer.Error.Message)
	}
	c := answer.Credentials
	return Credentials{AccessKey: c.AccessKeyID, SecretKey: c.SecretAccessKey, SessionToken: c.SessionToken, Expires: c.Expiration}, nil
}

// sts is the endpoint of STS in the region of the process.
func (s *source) sts() string {
	region, domain := cmp.Or(s.env("AWS_REGION"), s.env("AWS_DEFAULT_REGION")), "amazonaws.com"
	if strings.HasPrefix(region, "cn-") {
		domain += ".cn"
	}
	if region != "" {
		domain = region + "." + domain
	}
	return cmp.Or(s.env("AWS_ENDPOINT_URL_STS"), "https://sts."+domain)
}

// container asks the endpoint that EKS pod identity and ECS offer to the processes of a container.
func (s *source) container(ctx context.Context, endpoint string) (Credentials, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint, nil)
	if err != nil {
		return Credentials{}, err
	}
	if !trusted(req.URL) {
		return Credentials{}, errors.New("must be https, or the address of this host, of ECS or of EKS")
	}
	token := s.env("AWS_CONTAINER_AUTHORIZATION_TOKEN")
	if file := s.env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
		if token, err = conf.Secret("").Or(file); err != nil {
			return Credentials{}, fmt.Errorf("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: %w", err)
		}
	}
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	code, body, err := do(req, nil)
	if err != nil {
		return Credentials{}, err
	}
	var answer struct {
		AccessKeyID     string `json:"AccessKeyId"`
		SecretAccessKey string
		Token           string
		Expiration      time.Time
		Code, Message   string
	}
	if err := json.Unmarshal(body, &answer); code != http.StatusOK || err != nil {
		return Credentials{}, refused(code, answer.Code, answer.Message)
	}
	return Credentials{AccessKey: answer.AccessKeyID, SecretKey: answer.SecretAccessKey, SessionToken: answer.Token, Expires: answer.Expiration}, nil
}

// trusted reports whether an endpoint may receive the token of the container, as AWS's SDKs have it.
func trusted(u *url.URL) bool {
	if u.Scheme == "https" {
		return true
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err == nil && (ip.IsLoopback() || ip == netip.MustParseAddr("169.254.170.2") ||
		ip == netip.MustParseAddr("169.254.170.23") || ip == netip.MustParseAddr("fd00:ec2::23"))
}

// refused is the error of an answer, of which only the two fields of an error are shown.
func refused(status int, code, message string) error {
	return errors.New(strings.TrimRight(fmt.Sprintf("%d %s: %s: %s", status, http.StatusText(status), code, message), ": "))
}

// do sends a request. It follows no redirect, because the request has a secret.
func do(req *http.Request, proxy func(*http.Request) (*url.URL, error)) (code int, body []byte, err error) {
	transport := &http.Transport{Proxy: proxy, DialContext: (&net.Dialer{Timeout: timeout}).DialContext, DisableKeepAlives: true}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, body, err
}
