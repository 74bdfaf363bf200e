// Package kafka finds and enters a Kafka cluster, asks the brokers, and reads partitions. It writes no records.
package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/conf"
)

// Config says how to reach the brokers and how to log in.
type Config struct {
	// The brokers to contact first, as `host:port`.
	Brokers []string `yaml:"brokers" example:"[kafka-1:9092, kafka-2:9092]"`
	// Turns TLS on. `tls: {}` trusts the system's certificate authorities.
	TLS *TLS `yaml:"tls"`
	// The login to Kafka.
	SASL SASL `yaml:"sasl"`

	// Dial replaces the dialer, for tests and tunnels. TLS is then Dial's task.
	Dial func(ctx context.Context, network, host string) (net.Conn, error) `yaml:"-"`
	// Until is when clients stop to send; nil for never.
	Until *Deadline `yaml:"-"`
}

// TLS names PEM files, all of them optional. They are read again for every connection, so a renewed certificate needs no
// restart.
type TLS struct {
	// Authorities to trust instead of the system's (PEM).
	CAFile string `yaml:"ca_file" example:"/etc/walpost/ca.pem"`
	// walpost's certificate (PEM).
	CertFile string `yaml:"cert_file" example:"/etc/walpost/client.pem"`
	// The certificate's key (PEM).
	KeyFile string `yaml:"key_file" example:"/etc/walpost/client.key"`
	// The name in the server's certificate, if it isn't the host.
	ServerName string `yaml:"server_name" example:"kafka.internal"`
}

// SASL is used when Mechanism is set. The files are read again for every authentication.
type SASL struct {
	// If it isn't set, walpost doesn't log in.
	Mechanism string `yaml:"mechanism" words:"|PLAIN|SCRAM-SHA-256|SCRAM-SHA-512|OAUTHBEARER|AWS_MSK_IAM"`

	// For PLAIN and SCRAM.
	Username string `yaml:"username" example:"walpost"`
	// For PLAIN and SCRAM.
	Password conf.Secret `yaml:"password" example:"secret"`
	// A file with the password.
	PasswordFile string `yaml:"password_file" example:"/run/secrets/kafka"`

	// For OAUTHBEARER.
	Token conf.Secret `yaml:"token" example:"secret"`
	// A file with the token.
	TokenFile string `yaml:"token_file" example:"/run/secrets/token"`
	// For OAUTHBEARER: a program, with its arguments, that prints the token. It runs at every
	// login.
	TokenCommand []string `yaml:"token_command" example:"[/usr/local/bin/kafka-token, --scope, walpost]"`
	// For OAUTHBEARER: the URL where walpost gets and renews tokens (client credentials).
	TokenEndpointURL string `yaml:"token_endpoint_url" example:"https://login.internal/oauth2/token"`
	// For `token_endpoint_url`.
	ClientID string `yaml:"client_id" example:"walpost"`
	// For `token_endpoint_url`.
	ClientSecret conf.Secret `yaml:"client_secret" example:"secret"`
	// A file with the client's secret.
	ClientSecretFile string `yaml:"client_secret_file" example:"/run/secrets/oauth"`
	// For `token_endpoint_url`.
	Scope string `yaml:"scope" example:"kafka"`
	// SASL extensions, for OAUTHBEARER.
	Extensions map[string]string `yaml:"extensions" example:"{logicalCluster: lkc-1}"`

	// For AWS_MSK_IAM. Default: from the [environment](cloud-kafka.md#amazon-msk).
	AccessKey string `yaml:"access_key" example:"AKIA"`
	// A file with the access key.
	AccessKeyFile string `yaml:"access_key_file" example:"/run/secrets/aws-key"`
	// For AWS_MSK_IAM, with `access_key`.
	SecretKey conf.Secret `yaml:"secret_key" example:"secret"`
	// A file with the secret key.
	SecretKeyFile string `yaml:"secret_key_file" example:"/run/secrets/aws"`
	// For AWS_MSK_IAM, if `access_key` is temporary.
	SessionToken conf.Secret `yaml:"session_token" example:"secret"`
	// A file with the session token.
	SessionTokenFile string `yaml:"session_token_file" example:"/run/secrets/aws-session"`
	// For AWS_MSK_IAM. Default: from the broker's name or `AWS_REGION`.
	Region string `yaml:"region" example:"eu-central-1"`
}

// Validate returns what is wrong with the keys together and with the files, or nil. conf.Check has what is wrong with each
// key. It connects nowhere.
func (c Config) Validate() (found conf.Problems) {
	if len(c.Brokers) == 0 {
		found.Add("kafka.brokers", conf.Required, "", nil)
	}
	for i, b := range c.Brokers {
		checkBroker(&found, fmt.Sprintf("kafka.brokers[%d]", i), b)
	}
	if c.TLS != nil {
		c.TLS.Validate(&found, "kafka.tls")
	}
	c.SASL.validate(&found)
	return found
}

// Validate adds what is wrong with the section field.
func (t *TLS) Validate(found *conf.Problems, field string) {
	if (t.CertFile == "") != (t.KeyFile == "") {
		found.Add(field, conf.MustHave, fmt.Sprintf("both cert_file and key_file, or neither (got cert_file %q, key_file %q)", t.CertFile, t.KeyFile), nil)
	}
	_, err := t.roots()
	found.Try(field+".ca_file", err)
	if readable(found, field+".cert_file", t.CertFile) && readable(found, field+".key_file", t.KeyFile) {
		if _, err := t.pair(); err != nil {
			found.Try(field+".cert_file", fmt.Errorf("with %s.key_file: %w", field, err))
		}
	}
}

// readable reports whether a file can be opened, or is not set.
func readable(found *conf.Problems, field, path string) bool {
	if path == "" {
		return true
	}
	f, err := os.Open(path)
	if err == nil {
		_ = f.Close() // opened for reading only
	}
	found.Try(field, err)
	return err == nil
}

func checkBroker(found *conf.Problems, field, b string) {
	host, port, err := net.SplitHostPort(b)
	if err != nil || host == "" || strings.ContainsAny(host, "/ ,") {
		found.Add(field, conf.MustBe, "host:port", b)
	} else if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		found.Add(field, conf.MustBe, "host:port with a port from 1 to 65535", b)
	}
}

const dialTimeout = 10 * time.Second

// dialAbrupt opens a connection that sends nothing any more once it is closed: what waits in the buffers of this machine is thrown
// away. So a request that was given up doesn't arrive later, behind those of another connection.
func dialAbrupt(ctx context.Context, network, host string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Options are the options with which every client finds and enters the cluster.
func (c Config) Options() []kgo.Opt {
	dial := c.Until.bound(dialAbrupt)
	switch {
	case c.Dial != nil:
		dial = c.Until.bound(c.Dial)
	case c.TLS != nil:
		t := *c.TLS // the caller may change its own
		dial = t.over(dial)
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID("walpost"),
		kgo.Dialer(dial),
		// The client waits this long before it asks for metadata again. The default of 5 s shows as latency after every
		// error that a refresh cures (seen: 5.0 s against 0.25 s).
		kgo.MetadataMinAge(250 * time.Millisecond),
	}
	if m := c.SASL.mechanism(); m != nil {
		opts = append(opts, kgo.SASL(m))
	}
	return opts
}

// NewClient makes a client that asks the brokers. It gives up a request after some seconds, so that the reason shows. It does not connect.
func (c Config) NewClient(hooks ...kgo.Hook) (*kgo.Client, error) {
	cl, err := kgo.NewClient(append(c.Options(), kgo.RetryTimeout(5*time.Second), kgo.RequestRetries(3), kgo.WithHooks(hooks...))...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return cl, nil
}

// load reads the files into a configuration for one connection.
func (t *TLS) load() (c *tls.Config, err error) {
	c = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if c.RootCAs, err = t.roots(); err != nil {
		return nil, fmt.Errorf("tls.ca_file: %w", err)
	}
	if c.Certificates, err = t.pair(); err != nil {
		return nil, fmt.Errorf("tls.cert_file, tls.key_file: %w", err)
	}
	return c, nil
}

// roots are the authorities to trust: nil for the system's.
func (t *TLS) roots() (*x509.CertPool, error) {
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

// pair is the certificate of the client, if there is one.
func (t *TLS) pair() ([]tls.Certificate, error) {
	if t.CertFile == "" || t.KeyFile == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, err
	}
	return []tls.Certificate{pair}, nil
}

// Dial opens a TLS connection.
func (t *TLS) Dial(ctx context.Context, network, host string) (net.Conn, error) {
	return t.over((&net.Dialer{Timeout: dialTimeout}).DialContext)(ctx, network, host)
}

// over opens TLS connections over those of a dialer. The files are read each time: short-lived certificates are renewed in place.
func (t *TLS) over(dial dialer) dialer {
	return func(ctx context.Context, network, host string) (net.Conn, error) {
		c, err := t.load()
		if err != nil {
			return nil, err
		}
		if c.ServerName == "" {
			if c.ServerName, _, err = net.SplitHostPort(host); err != nil {
				return nil, fmt.Errorf("address %q: %w", host, err)
			}
		}
		plain, err := dial(ctx, network, host)
		if err != nil {
			return nil, err
		}
		conn := tls.Client(plain, c)
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = plain.Close() // nothing was sent through it
			return nil, err
		}
		return conn, nil
	}
}
