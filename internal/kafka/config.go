// Package kafka finds and enters a Kafka cluster, asks the brokers, and reads partitions. It writes no records.
package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/fault"
)

// Config says how to reach the brokers and how to log in. The names in brackets are those of walpost.yaml.
type Config struct {
	Brokers []string // [kafka.brokers] host:port; at least one
	TLS     TLS      // [kafka.tls]
	SASL    SASL     // [kafka.sasl]

	// Dial replaces the dialer, for tests and tunnels. TLS is then Dial's task.
	Dial func(ctx context.Context, network, host string) (net.Conn, error)
}

// TLS is used when Enabled is true, or when a file or ServerName is set. The files are read again for every connection, so a
// renewed certificate needs no restart.
type TLS struct {
	Enabled    bool
	CAFile     string // PEM; default: the system's roots
	CertFile   string // PEM; with KeyFile
	KeyFile    string
	ServerName string // default: the broker's host
}

// On reports whether connections use TLS.
func (t TLS) On() bool {
	return t.Enabled || t.CAFile != "" || t.CertFile != "" || t.KeyFile != "" || t.ServerName != ""
}

// SASL is used when Mechanism is set. The files are read again for every authentication.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM

	Username     string
	Password     string
	PasswordFile string

	// OAUTHBEARER
	Token      string
	TokenFile  string
	Extensions map[string]string

	// AWS_MSK_IAM. What is empty comes from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN. The region is
	// Region. If Region is empty, it is the region in the broker's name, or else AWS_REGION.
	AccessKey     string
	SecretKey     string
	SecretKeyFile string
	SessionToken  string
	Region        string
}

// Validate returns every fault of the configuration, or nil. It opens the files and connects nowhere.
func (c Config) Validate() fault.Problems {
	var found fault.Problems
	if len(c.Brokers) == 0 {
		found.Add("kafka.brokers", "must name at least one broker (got none)")
	}
	for i, b := range c.Brokers {
		if err := checkBroker(b); err != nil {
			found.Add(fmt.Sprintf("kafka.brokers[%d]", i), "%v", err)
		}
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		found.Add("kafka.tls", "cert_file and key_file must both be set or both be left out (got cert_file %q, key_file %q)",
			c.TLS.CertFile, c.TLS.KeyFile)
	}
	if _, err := c.TLS.roots(); err != nil {
		found.Add("kafka.tls.ca_file", "%v", err)
	}
	if readable(&found, "kafka.tls.cert_file", c.TLS.CertFile) && readable(&found, "kafka.tls.key_file", c.TLS.KeyFile) {
		if _, err := c.TLS.pair(); err != nil {
			found.Add("kafka.tls.cert_file", "with kafka.tls.key_file: %v", err)
		}
	}
	c.SASL.validate(&found)
	return found
}

// readable reports whether a file can be opened, or is not set.
func readable(found *fault.Problems, field, path string) bool {
	if path == "" {
		return true
	}
	f, err := os.Open(path)
	if err != nil {
		found.Add(field, "%v", err)
		return false
	}
	_ = f.Close() // opened for reading only
	return true
}

func checkBroker(b string) error {
	host, port, err := net.SplitHostPort(b)
	if err != nil || host == "" || strings.ContainsAny(host, "/ ,") {
		return fmt.Errorf("must be host:port (got %q)", b)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("the port must be from 1 to 65535 (got %q)", b)
	}
	return nil
}

const dialTimeout = 10 * time.Second

// Options are the options with which every client finds and enters the cluster.
func (c Config) Options() []kgo.Opt {
	dial := c.Dial
	switch {
	case dial != nil:
	case c.TLS.On():
		dial = c.TLS.dial
	default:
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
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

// pair is the certificate of the client, if there is one.
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
