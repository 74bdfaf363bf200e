package sink

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

func TestTLSWithAClientCertificate(t *testing.T) {
	ca := testenv.NewAuthority(t)
	server, _, _ := ca.Pair("server")
	_, cert, key := ca.Pair("client")
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"), kfake.TLS(&tls.Config{
		Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}))
	cfg := config(c.ListenAddrs())
	cfg.TLS = &kafka.TLS{CAFile: ca.File, CertFile: cert, KeyFile: key}
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
	short.SkipSlow(t)
	for _, m := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(m, func(t *testing.T) {
			c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"), kfake.EnableSASL(), kfake.Superuser(m, "relay", "secret"))
			path := filepath.Join(t.TempDir(), "password")
			write := func(s string) {
				if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("old\n")
			cfg := config(c.ListenAddrs())
			cfg.SASL = kafka.SASL{Mechanism: m, Username: "relay", PasswordFile: path}
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
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "admin", "admin"),
		kfake.User("PLAIN", "relay", "secret", allow(kmsg.ACLOperationDescribe)))
	cfg := config(c.ListenAddrs())
	cfg.SASL = kafka.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}
	b := open1(t, cfg)
	b.send("a", "k", 200)
	waitFor(t, func() bool {
		err := b.Stalled()
		return err != nil && strings.Contains(err.Error(), "not authorized to produce") && strings.Contains(err.Error(), "topic a")
	})
	admin := config(c.ListenAddrs())
	admin.SASL = kafka.SASL{Mechanism: "PLAIN", Username: "admin", Password: "admin"}
	cl, err := kgo.NewClient(admin.Options()...)
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
		Config: kafka.Config{
			Brokers: []string{"kafka", "kafka:99999", "kafka:9092"},
			TLS:     &kafka.TLS{CAFile: "/does/not/exist", CertFile: "only"},
			SASL:    kafka.SASL{Mechanism: "SCRAM-SHA-256"},
		},
	}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`kafka.brokers[0]: must be host:port (got "kafka")`,
		`kafka.brokers[1]: must be host:port with a port from 1 to 65535 (got "kafka:99999")`,
		`kafka.tls: must have both cert_file and key_file, or neither`,
		`kafka.tls.ca_file: open /does/not/exist: no such file or directory`,
		`kafka.sasl.username: is required for SCRAM-SHA-256`,
		`kafka.sasl.password: is required for SCRAM-SHA-256`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing: %s\nin:\n%v", want, err)
		}
	}
	least := config([]string{"[::1]:9092"})
	least.Compression = ""
	if err := least.Validate(); err != nil {
		t.Errorf("the smallest configuration: %v", err)
	}
}
