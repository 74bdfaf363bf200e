//go:build linux || darwin

package kafka

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/testenv"
)

const patience = 2 * time.Minute

// A door is a real broker with TLS of its own authority, every mechanism, and ACLs.
type door struct {
	*testing.T
	ca    *testenv.Authority
	at    map[string]string // the address of a listener
	admin *kadm.Client
}

func localhost(name string, of x509.Certificate) x509.Certificate {
	of.Subject = pkix.Name{CommonName: name}
	of.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	return of
}

func newDoor(t *testing.T) *door {
	t.Helper()
	d := &door{T: t, ca: testenv.NewAuthority(t)}
	props := map[string]string{
		"ssl.truststore.type": "PEM", "ssl.truststore.location": d.ca.File,
		"listener.name.mutual.ssl.client.auth":               "required",
		"listener.name.asked.sasl.enabled.mechanisms":        "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		"listener.name.asked.plain.sasl.jaas.config":         testenv.PlainUsers(map[string]string{"plain": "right"}),
		"listener.name.asked.scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"listener.name.asked.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"listener.name.asked.oauthbearer.sasl.jaas.config":   testenv.Bearer,
	}
	for listener, of := range map[string]x509.Certificate{
		"mutual": localhost("server", x509.Certificate{}), "asked": localhost("server", x509.Certificate{}),
		"expired": localhost("server", x509.Certificate{NotAfter: time.Now().Add(-time.Minute)}),
		"other":   {DNSNames: []string{"other.test"}},
	} {
		_, cert, key := d.ca.Issue(listener, of)
		props["listener.name."+listener+".ssl.keystore.type"] = "PEM"
		props["listener.name."+listener+".ssl.keystore.location"] = d.ca.Keystore(cert, key)
	}
	c, at := testenv.KafkaListeners(t, map[string]string{"MUTUAL": "SSL", "EXPIRED": "SSL", "OTHER": "SSL", "ASKED": "SASL_SSL"}, props)
	d.at, d.admin = at, kadm.NewClient(c.Client(t))
	for i, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
		user := kadm.UpsertSCRAM{User: []string{"scram256", "scram512"}[i], Mechanism: mechanism, Iterations: 4096, Password: "right"}
		if made, err := d.admin.AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{user}); err != nil || !made.Ok() {
			t.Fatal(made, err)
		}
	}
	// Each principal may write to its own topic.
	for topic, principal := range map[string]string{
		"relay": "User:CN=relay", "second": "User:CN=second", "plain": "User:plain", "scram256": "User:scram256", "scram512": "User:scram512",
		"oauth": "User:oauth", "renewed": "User:renewed", "open": "User:ANONYMOUS",
	} {
		c.CreateTopic(t, topic, 1, nil)
		acl := kadm.NewACLs().Topics(topic).Allow(principal).AllowHosts("*").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpWrite, kadm.OpDescribe)
		if made, err := d.admin.CreateACLs(t.Context(), acl); err != nil || made[0].Err != nil {
			t.Fatal(made, err)
		}
	}
	return d
}

// writes logs in anew, and writes a record to a topic.
func (d *door) writes(cfg Config, topic string) error {
	ctx, cancel := context.WithTimeout(d.Context(), patience)
	defer cancel()
	cl, err := cfg.NewClient()
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := cl.Ping(ctx); err != nil {
		return err
	}
	return cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr()
}

// is wants the login of cfg to be a principal: the one whose topic it may write to, which is no other's.
func (d *door) is(story string, cfg Config, topic string) {
	d.Helper()
	err := errors.New("not tried")
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); time.Sleep(50 * time.Millisecond) { // an ACL takes effect a moment later
		err = d.writes(cfg, topic)
	}
	if err != nil {
		d.Fatalf("%s: %v", story, err)
	}
	for _, other := range []string{"relay", "plain", "oauth"} {
		if other != topic {
			if err := d.writes(cfg, other); !errors.Is(err, kerr.TopicAuthorizationFailed) {
				d.Errorf("%s: writes as %s, too: %v", story, other, err)
			}
		}
	}
}

// fails wants the login of cfg to be refused, with no secret in the reason.
func (d *door) fails(story string, cfg Config, because func(error) bool) {
	d.Helper()
	err := d.writes(cfg, "open")
	if err == nil || !because(err) || strings.Contains(err.Error(), "wrong") {
		d.Errorf("%s: %v", story, err)
	}
}

func as[E error](err error) bool { return errors.As(err, new(E)) }

func says(texts ...string) func(error) bool {
	return func(err error) bool {
		for _, text := range texts {
			if strings.Contains(err.Error(), text) {
				return true
			}
		}
		return false
	}
}

func rewrite(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What a real broker says of certificates and logins, good and bad ones. Each file is read again for the next connection.
func TestRealCertificatesAndLogins(t *testing.T) {
	d := newDoor(t)
	_, cert, key := d.ca.Issue("relay", localhost("relay", x509.Certificate{}))
	_, oldCert, oldKey := d.ca.Issue("old", localhost("relay", x509.Certificate{NotAfter: time.Now().Add(-time.Minute)}))
	stranger := testenv.NewAuthority(t)
	_, strangeCert, strangeKey := stranger.Issue("relay", localhost("relay", x509.Certificate{}))
	to := func(listener string, with TLS) Config {
		if with.CAFile == "" {
			with.CAFile = d.ca.File
		}
		return Config{Brokers: []string{d.at[listener]}, TLS: &with}
	}
	rejected := says("certificate", "EOF", "reset by peer", "broken pipe") // an alert may be lost with the connection

	d.is("a certificate", to("MUTUAL", TLS{CertFile: cert, KeyFile: key}), "relay")
	d.fails("no certificate", to("MUTUAL", TLS{}), rejected)
	d.fails("an expired certificate", to("MUTUAL", TLS{CertFile: oldCert, KeyFile: oldKey}), rejected)
	d.fails("the certificate of another authority", to("MUTUAL", TLS{CertFile: strangeCert, KeyFile: strangeKey}), rejected)
	d.fails("a server of another authority", to("MUTUAL", TLS{CAFile: stranger.File, CertFile: cert, KeyFile: key}), as[x509.UnknownAuthorityError])
	d.fails("the authorities of the system", Config{Brokers: []string{d.at["MUTUAL"]}, TLS: &TLS{}}, as[x509.UnknownAuthorityError])
	d.fails("a server that is out of date", to("EXPIRED", TLS{}), as[x509.CertificateInvalidError])
	d.fails("a server with another name", to("OTHER", TLS{}), as[x509.HostnameError])
	if err := d.writes(to("OTHER", TLS{ServerName: "other.test"}), "open"); err != nil {
		t.Errorf("a server with the name of server_name: %v", err)
	}

	renewed := to("MUTUAL", TLS{CertFile: cert, KeyFile: key, CAFile: filepath.Join(t.TempDir(), "ca.pem")})
	authority := func(a *testenv.Authority) string {
		text, err := os.ReadFile(a.File)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	rewrite(t, renewed.TLS.CAFile, authority(stranger))
	d.fails("the file of the authority, before it is replaced", renewed, as[x509.UnknownAuthorityError])
	rewrite(t, renewed.TLS.CAFile, authority(stranger)+authority(d.ca))
	d.is("the file of the authority, with both", renewed, "relay")
	d.ca.Issue("relay", localhost("second", x509.Certificate{})) // over the files of the first
	d.is("a renewed certificate with another subject", renewed, "second")

	asked := func(s SASL) Config {
		cfg := to("ASKED", TLS{})
		cfg.SASL = s
		return cfg
	}
	refused := func(err error) bool { return errors.Is(err, kerr.SaslAuthenticationFailed) }
	file := rewrite(t, filepath.Join(t.TempDir(), "secret"), "wrong\n")
	for _, s := range []SASL{
		{Mechanism: "PLAIN", Username: "plain", PasswordFile: file},
		{Mechanism: "SCRAM-SHA-256", Username: "scram256", PasswordFile: file},
		{Mechanism: "SCRAM-SHA-512", Username: "scram512", PasswordFile: file},
	} {
		rewrite(t, file, "wrong\n")
		d.fails(s.Mechanism+" with a wrong password", asked(s), refused)
		rewrite(t, file, "right\n")
		d.is(s.Mechanism+" with the right password", asked(s), s.Username)
	}
	d.fails("SCRAM of the other length", asked(SASL{Mechanism: "SCRAM-SHA-512", Username: "scram256", Password: "right"}), refused)
	bearer := func(s SASL) Config {
		s.Mechanism = "OAUTHBEARER"
		return asked(s)
	}
	rewrite(t, file, testenv.Token("oauth", -time.Hour))
	d.fails("a token that is out of date", bearer(SASL{TokenFile: file}), refused)
	rewrite(t, file, testenv.Token("oauth", time.Hour))
	d.is("the token of a file", bearer(SASL{TokenFile: file}), "oauth")
	d.is("the token of a command", bearer(SASL{TokenCommand: []string{"cat", file}}), "oauth")
	d.fails("a command that fails", bearer(SASL{TokenCommand: []string{"sh", "-c", "cat " + file + "; echo no session >&2; exit 1"}}), says("no session"))
	rewrite(t, file, testenv.Token("renewed", time.Hour))
	d.is("the token of a file that was replaced", bearer(SASL{TokenFile: file}), "renewed")
	e := newEndpoint(t)
	e.token = func() string { return testenv.Token("oauth", time.Hour) }
	d.is("the token of an endpoint", bearer(e.sasl()), "oauth")
	e.fails = true
	d.fails("an endpoint that refuses the client", bearer(e.sasl()), says("401 Unauthorized: invalid_client"))
}
