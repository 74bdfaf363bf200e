package doctor

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/sink"
)

func TestFixesAreCommandsOfKafkasTools(t *testing.T) {
	cfg := config([]string{"boot:9098"})
	cfg.SASL = kafka.SASL{Mechanism: "SCRAM-SHA-512", Username: "re lay", Password: "x"}
	f := newKafkaFixes(cfg.Config)
	cfg.SASL.Mechanism = "AWS_MSK_IAM"
	iam := newKafkaFixes(cfg.Config)
	const access, acl = " --bootstrap-server boot:9098 --command-config admin.properties", "kafka-acls.sh --bootstrap-server boot:9098 --command-config admin.properties --add --allow-principal 'User:re lay'"
	for want, is := range map[string]fix.Step{
		"kafka-configs.sh" + access + " --alter --entity-type topics --entity-name t --add-config a=b":                                                     f.topic("t", "a=b"),
		"kafka-topics.sh" + access + " --create --topic t --partitions 3 --replication-factor 2":                                                           f.create(kafka.NewTopic{Name: "t", Partitions: 3, Replicas: 2}),
		"kafka-topics.sh" + access + " --create --topic t --partitions 1 --config cleanup.policy=compact":                                                  f.create(kafka.NewTopic{Name: "t", Partitions: 1, Settings: map[string]string{"cleanup.policy": "compact"}}),
		acl + " --operation Write --operation DescribeConfigs --topic t":                                                                                   f.grant("t", "Write", "DescribeConfigs"),
		acl + " --operation IdempotentWrite --cluster":                                                                                                     f.grantIdempotentWrite(),
		acl + " --operation Write --operation Describe --transactional-id n":                                                                               f.grantTransactional("n"),
		"Allow kafka-cluster:WriteData, kafka-cluster:DescribeTopicDynamicConfiguration on topic t in the IAM policy of the relay's role.":                 iam.grant("t", "Write", "DescribeConfigs"),
		"Allow kafka-cluster:DeleteTopic on topic t in the IAM policy of the relay's role.":                                                                iam.grant("t", "Delete"),
		"Allow kafka-cluster:WriteDataIdempotently on the cluster in the IAM policy of the relay's role.":                                                  iam.grantIdempotentWrite(),
		"Allow kafka-cluster:AlterTransactionalId, kafka-cluster:DescribeTransactionalId on the transactional id n in the IAM policy of the relay's role.": iam.grantTransactional("n"),
	} {
		if got := (fix.Fix{is}).Text(""); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// ACLs name the user as the brokers do.
func TestThePrincipalIsTheOneOfTheBrokers(t *testing.T) {
	ca := testenv.NewAuthority(t)
	_, cert, key := ca.Pair("client")
	withTLS := &kafka.TLS{CAFile: ca.File, CertFile: cert, KeyFile: key}
	for _, c := range []struct {
		cfg  kafka.Config
		want string
	}{
		{kafka.Config{}, "User:ANONYMOUS"},
		{kafka.Config{SASL: kafka.SASL{Mechanism: "PLAIN", Username: "o'relay"}}, `'User:o'\''relay'`},
		{kafka.Config{TLS: withTLS, SASL: kafka.SASL{Mechanism: "PLAIN", Username: "relay"}}, "User:relay"},
		{kafka.Config{Brokers: []string{"pkc-abc12.eu-central-1.aws.confluent.cloud:9092"}, SASL: kafka.SASL{Mechanism: "PLAIN", Username: "ABCDEFGHIJKLMNOP"}}, "'User:<service account>'"},
		{kafka.Config{TLS: withTLS, SASL: kafka.SASL{Mechanism: "OAUTHBEARER", Token: "t"}}, "'User:…'"},
		{kafka.Config{TLS: withTLS}, "User:CN=test"},
		{kafka.Config{TLS: &kafka.TLS{CertFile: "gone", KeyFile: "gone"}}, "'User:…'"},
	} {
		c.cfg.Brokers = append(c.cfg.Brokers, "k:9092")
		if got := newKafkaFixes(c.cfg).principal; got != c.want {
			t.Errorf("%+v: %s, want %s", c.cfg, got, c.want)
		}
	}
}

// A broker that cannot be talked to is told apart by why.
func TestUnreachableBrokersSayWhatToSet(t *testing.T) {
	ca := testenv.NewAuthority(t)
	server, _, _ := ca.Pair("server")
	secure := testenv.FakeKafka(t, tlsOf(server))
	users := testenv.FakeKafka(t, saslOf("relay", "secret")...)
	for what, c := range map[string]struct {
		cfg  func(*sink.Config)
		at   []string
		want string
	}{
		"a wrong password": {func(c *sink.Config) { c.SASL = kafka.SASL{Mechanism: "PLAIN", Username: "relay", Password: "hunter2"} }, users.ListenAddrs(), "SASL (kafka.sasl)"},
		"a mechanism not offered": {func(c *sink.Config) {
			c.SASL = kafka.SASL{Mechanism: "SCRAM-SHA-512", Username: "relay", Password: "hunter2"}
		}, users.ListenAddrs(), "kafka.sasl"},
		"SASL that is missing":     {func(*sink.Config) {}, users.ListenAddrs(), "kafka.sasl"},
		"TLS that is missing":      {func(*sink.Config) {}, secure.ListenAddrs(), "may require TLS (kafka.tls)"},
		"an authority not trusted": {func(c *sink.Config) { c.TLS = &kafka.TLS{} }, secure.ListenAddrs(), "Set kafka.tls.ca_file"},
		"another name":             {func(c *sink.Config) { c.TLS = &kafka.TLS{CAFile: ca.File, ServerName: "x.test"} }, secure.ListenAddrs(), "kafka.tls.server_name"},
		"a name that is not known": {func(*sink.Config) {}, []string{"no-such-host.invalid:9092"}, "Correct the name in kafka.brokers"},
		"nobody listens":           {func(*sink.Config) {}, []string{"127.0.0.1:1"}, "Start the broker"},
	} {
		t.Run(what, func(t *testing.T) {
			cfg := config(c.at[:1])
			c.cfg(&cfg)
			found := checkKafka(t.Context(), cfg, "", "n", func() expectation { return expectation{} })
			if len(found) != 1 || found[0].Verdict != Fail || !strings.Contains(found[0].FixText(), c.want) {
				t.Errorf("%s", lines(found))
			}
			hasNot(t, lines(found), "hunter2")
		})
	}
}

func tlsOf(cert tls.Certificate) kfake.Opt {
	return kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}})
}

func saslOf(user, password string) []kfake.Opt {
	return []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("PLAIN", user, password)}
}
