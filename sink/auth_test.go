package sink

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// An authority signs certificates for 127.0.0.1.
type authority struct {
	testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
	n    int64
}

func newAuthority(t testing.TB) *authority {
	a := &authority{TB: t, dir: t.TempDir(), n: 1}
	der, key := a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.key = key
	a.cert, _ = x509.ParseCertificate(der)
	a.file("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) sign(c *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	a.n++
	c.SerialNumber = big.NewInt(a.n)
	c.Subject = pkix.Name{CommonName: "test"}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.Fatal(err)
	}
	return der, key
}

func (a *authority) file(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.Fatal(err)
	}
	return path
}

func (a *authority) pair(name string) (tls.Certificate, string, string) {
	der, key := a.sign(&x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"broker.test"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	kder, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, a.file(name+".pem", "CERTIFICATE", der), a.file(name+".key", "EC PRIVATE KEY", kder)
}

func TestTLSWithAClientCertificate(t *testing.T) {
	ca := newAuthority(t)
	server, _, _ := ca.pair("server")
	_, cert, key := ca.pair("client")
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	c := fake(t, kfake.SeedTopics(1, "a"), kfake.TLS(&tls.Config{
		Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}))
	cfg := config(c.ListenAddrs())
	cfg.TLS = TLS{CAFile: filepath.Join(ca.dir, "ca.pem"), CertFile: cert, KeyFile: key}
	b := open1(t, cfg)
	b.send("a", "k", 10)
	b.all()

	cfg.TLS.ServerName = "another.test"
	wrong := open1(t, cfg)
	wrong.send("a", "k", 1)
	waitFor(t, func() bool {
		err := wrong.Stalled()
		return err != nil && strings.Contains(err.Error(), "another.test")
	})
	cfg.TLS.ServerName = "broker.test"
	right := open1(t, cfg)
	right.send("a", "k", 1)
	right.all()
}

func TestSASLReadsItsFilesAgain(t *testing.T) {
	for _, m := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(m, func(t *testing.T) {
			c := fake(t, kfake.SeedTopics(1, "a"), kfake.EnableSASL(), kfake.Superuser(m, "relay", "secret"))
			path := filepath.Join(t.TempDir(), "password")
			write := func(s string) {
				if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("old\n")
			cfg := config(c.ListenAddrs())
			cfg.SASL = SASL{Mechanism: m, Username: "relay", PasswordFile: path}
			b := open1(t, cfg)
			b.send("a", "k", 3)
			waitFor(t, func() bool { return b.Stalled() != nil })
			if err := b.Stalled(); strings.Contains(err.Error(), "old") {
				t.Errorf("the reason tells the password: %v", err)
			}
			write("secret\n")
			b.all()
		})
	}
}

func TestARightThatIsGrantedLaterIsWaitedFor(t *testing.T) {
	allow := func(op kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: "a", Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true}
	}
	c := fake(t, kfake.SeedTopics(1, "a"), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "admin", "admin"),
		kfake.User("PLAIN", "relay", "secret", allow(kmsg.ACLOperationDescribe)))
	cfg := config(c.ListenAddrs())
	cfg.SASL = SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}
	b := open1(t, cfg)
	b.send("a", "k", 200)
	waitFor(t, func() bool {
		err := b.Stalled()
		return err != nil && strings.Contains(err.Error(), "not authorized to produce") && strings.Contains(err.Error(), "topic a")
	})
	has(t, looked(t, cfg, map[string]Traffic{"a": {}}, ""), "topic a: FAIL: the relay's user may not write to it\n\tfix kafka-acls.sh --bootstrap-server "+
		c.ListenAddrs()[0]+" --command-config admin.properties --add --allow-principal User:relay --operation Write --topic a\n")
	admin := config(c.ListenAddrs())
	admin.SASL = SASL{Mechanism: "PLAIN", Username: "admin", Password: "admin"}
	cl, err := kgo.NewClient(admin.withDefaults().reachOpts()...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	setACL(t, cl, "a", kmsg.ACLOperationWrite, true)
	b.all() // without the right to describe the configuration: the limit is the default
	setACL(t, cl, "a", kmsg.ACLOperationWrite, false)
	b.send("a", "k", 200)
	waitFor(t, func() bool { return b.Stalled() != nil })
	setACL(t, cl, "a", kmsg.ACLOperationWrite, true)
	b.all()
	if len(b.poison) != 0 {
		t.Errorf("refused: %v", b.poison)
	}
}

func setACL(t testing.TB, cl *kgo.Client, topic string, op kmsg.ACLOperation, grant bool) {
	t.Helper()
	if !grant {
		req := kmsg.NewPtrDeleteACLsRequest()
		f := kmsg.NewDeleteACLsRequestFilter()
		f.ResourceType, f.ResourceName, f.ResourcePatternType = kmsg.ACLResourceTypeTopic, &topic, kmsg.ACLResourcePatternTypeLiteral
		f.Operation, f.PermissionType = op, kmsg.ACLPermissionTypeAllow
		req.Filters = append(req.Filters, f)
		if _, err := req.RequestWith(patient(t), cl); err != nil {
			t.Fatal(err)
		}
		return
	}
	req := kmsg.NewPtrCreateACLsRequest()
	c := kmsg.NewCreateACLsRequestCreation()
	c.ResourceType, c.ResourceName, c.ResourcePatternType = kmsg.ACLResourceTypeTopic, topic, kmsg.ACLResourcePatternTypeLiteral
	c.Principal, c.Host, c.Operation, c.PermissionType = "User:relay", "*", op, kmsg.ACLPermissionTypeAllow
	req.Creations = append(req.Creations, c)
	if _, err := req.RequestWith(patient(t), cl); err != nil {
		t.Fatal(err)
	}
}

func TestConfigurationErrorsAreToldAllAtOnce(t *testing.T) {
	cfg := Config{
		Brokers: []string{"kafka", "kafka:99999", "kafka:9092"}, Compression: "brotli", FixedLinger: true, Linger: -1, WindowEvents: -1, WindowBytes: -5,
		Topics: Topics{Partitions: -2, ReplicationFactor: 40_000},
		TLS:    TLS{CAFile: "/does/not/exist", CertFile: "only"},
		SASL:   SASL{Mechanism: "SCRAM-SHA-256"},
	}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`kafka.brokers[0]: must be host:port (got "kafka")`,
		`kafka.brokers[1]: the port must be from 1 to 65535 (got "kafka:99999")`,
		`kafka.compression: must be none, gzip, snappy, lz4 or zstd (got "brotli")`,
		`kafka.linger: must be auto, or from 0s to 10s (got -1ns)`,
		`delivery.window.events: must be at least 1 (got -1)`,
		`delivery.window.bytes: must be at least 1 (got -5)`,
		`kafka.topics.partitions: must be -1 (the broker's default) or at least 1 (got -2)`,
		`kafka.topics.replication_factor: must be -1 (the broker's default) or from 1 to 32767 (got 40000)`,
		`kafka.tls: cert_file and key_file must both be set`,
		`kafka.tls.ca_file: open /does/not/exist: no such file or directory`,
		`kafka.sasl.username: is required for SCRAM-SHA-256`,
		`kafka.sasl.password: is required for SCRAM-SHA-256`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing: %s\nin:\n%v", want, err)
		}
	}
	if err := (Config{Brokers: []string{"[::1]:9092"}}).Validate(); err != nil {
		t.Errorf("the smallest configuration: %v", err)
	}
}

// The file is read again for every login: one that has become empty since the start is an error and no empty password.
func TestAnEmptySecretIsRefusedAtALogin(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("right\n")
	cfg := Config{Brokers: []string{"k:9092"}, SASL: SASL{Mechanism: "PLAIN", Username: "u", PasswordFile: name}}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	login := func() ([]byte, error) {
		_, first, err := cfg.SASL.mechanism().Authenticate(t.Context(), "k:9092")
		return first, err
	}
	if first, err := login(); err != nil || string(first) != "\x00u\x00right" {
		t.Errorf("login: %q %v", first, err)
	}
	write("\n")
	if first, err := login(); err == nil || !strings.Contains(err.Error(), "must not be empty") {
		t.Errorf("login with an empty file: %q %v", first, err)
	}
}
