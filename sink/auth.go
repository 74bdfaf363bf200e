package sink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/secret"
)

type kgoDialer = func(ctx context.Context, network, host string) (net.Conn, error)

const dialTimeout = 10 * time.Second

// load reads the files into a configuration for one connection.
func (t TLS) load() (c *tls.Config, err error) {
	c = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if c.RootCAs, err = t.roots(); err != nil {
		return nil, fmt.Errorf("kafka.tls.ca_file: %w", err)
	}
	if c.Certificates, err = t.pair(); err != nil {
		return nil, fmt.Errorf("kafka.tls.cert_file, kafka.tls.key_file: %w", err)
	}
	return c, nil
}

// roots are the authorities to trust: nil for the system's.
func (t TLS) roots() (*x509.CertPool, error) {
	if t.CAFile == "" {
		return nil, nil //nolint:nilnil // as crypto/tls has it
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", t.CAFile)
	}
	return pool, nil
}

// pair is the certificate of the client; none where it is not wanted.
func (t TLS) pair() ([]tls.Certificate, error) {
	if t.CertFile == "" || t.KeyFile == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, err
	}
	return []tls.Certificate{pair}, nil
}

// dial opens one TLS connection. The files are read each time: short-lived certificates are renewed in place.
func (t TLS) dial(ctx context.Context, network, host string) (net.Conn, error) {
	c, err := t.load()
	if err != nil {
		return nil, err
	}
	if c.ServerName == "" {
		if c.ServerName, _, err = net.SplitHostPort(host); err != nil {
			return nil, fmt.Errorf("broker address %q: %w", host, err)
		}
	}
	d := &tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: c}
	return d.DialContext(ctx, network, host)
}

func (s SASL) validate(found *fault.Problems) {
	one := func(field, value, file string) {
		field = "kafka.sasl." + field
		switch {
		case value != "" && file != "":
			found.Add(field+"_file", "contradicts %s: write one of both", field)
		case file != "":
			if _, err := secret.Read(file); err != nil {
				found.Add(field+"_file", "%v", err)
			}
		}
	}
	needs := func(field string, values ...string) {
		if strings.Join(values, "") == "" {
			found.Add("kafka.sasl."+field, "is required for %s", s.Mechanism)
		}
	}
	one("password", s.Password, s.PasswordFile)
	one("token", s.Token, s.TokenFile)
	one("secret_key", s.SecretKey, s.SecretKeyFile)
	switch s.Mechanism {
	case "":
		if !reflect.ValueOf(s).IsZero() {
			found.Add("kafka.sasl.mechanism", "is required with any other key of kafka.sasl: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM")
		}
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
		needs("username", s.Username)
		needs("password", s.Password, s.PasswordFile)
	case "OAUTHBEARER":
		needs("token", s.Token, s.TokenFile)
	case "AWS_MSK_IAM":
		if (s.AccessKey == "") != (s.SecretKey == "" && s.SecretKeyFile == "") {
			found.Add("kafka.sasl", "access_key and secret_key must both be set or both be left out (then they come from the environment)")
		}
	default:
		found.Add("kafka.sasl.mechanism", "must be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM (got %q)", s.Mechanism)
	}
}

// secretOf is a value, or what its file has now.
func secretOf(value, path string) (string, error) {
	if path == "" {
		return value, nil
	}
	text, err := secret.Read(path)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	return text, nil
}

func (s SASL) mechanism() sasl.Mechanism {
	user := func() (user, pass string, err error) {
		pass, err = secretOf(s.Password, s.PasswordFile)
		return s.Username, pass, err
	}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			u, p, err := user()
			return plain.Auth{User: u, Pass: p}, err
		})
	case "SCRAM-SHA-256", "SCRAM-SHA-512":
		f := func(context.Context) (scram.Auth, error) {
			u, p, err := user()
			return scram.Auth{User: u, Pass: p}, err
		}
		if s.Mechanism == "SCRAM-SHA-256" {
			return scram.Sha256(f)
		}
		return scram.Sha512(f)
	case "OAUTHBEARER":
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			t, err := secretOf(s.Token, s.TokenFile)
			return oauth.Auth{Token: t, Extensions: s.Extensions}, err
		})
	case "AWS_MSK_IAM":
		auth := func(context.Context) (aws.Auth, error) { return s.awsAuth() }
		if s.Region != "" {
			return regional{region: s.Region, auth: auth}
		}
		return aws.ManagedStreamingIAM(auth)
	}
	return nil
}

func (s SASL) awsAuth() (aws.Auth, error) {
	a := aws.Auth{AccessKey: s.AccessKey, SessionToken: s.SessionToken}
	var err error
	if a.SecretKey, err = secretOf(s.SecretKey, s.SecretKeyFile); err != nil {
		return a, err
	}
	if a.AccessKey == "" {
		a.AccessKey, a.SecretKey = os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
		a.SessionToken = os.Getenv("AWS_SESSION_TOKEN")
	}
	if a.AccessKey == "" || a.SecretKey == "" {
		return a, errors.New("kafka.sasl: no AWS credentials in access_key and secret_key, nor in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	}
	return a, nil
}

// reachOpts are the options with which every client of this package finds and enters the cluster.
func (c Config) reachOpts() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.ClientID),
		// The client waits this long before it asks for metadata again; the default of 5 s shows as latency after every
		// error that a refresh cures (seen: 5.0 s against 0.25 s).
		kgo.MetadataMinAge(250 * time.Millisecond),
	}
	switch {
	case c.Dial != nil:
		opts = append(opts, kgo.Dialer(c.Dial))
	case c.TLS.on():
		opts = append(opts, kgo.Dialer(c.TLS.dial))
	default:
		opts = append(opts, kgo.Dialer((&net.Dialer{Timeout: dialTimeout}).DialContext))
	}
	if m := c.SASL.mechanism(); m != nil {
		opts = append(opts, kgo.SASL(m))
	}
	return opts
}
