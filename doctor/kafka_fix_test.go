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

func TestEachProviderHasItsOwnWay(t *testing.T) {
	cfg := config([]string{"boot:9098"})
	cfg.SASL = kafka.SASL{Mechanism: "SCRAM-SHA-512", Username: "re lay", Password: "x"}
	for _, c := range []struct {
		host                                                                 string
		iam                                                                  bool
		topic, broker, create, compacted, grant, grantCluster, transactional string
	}{
		{
			host: "kafka-1.example.com", topic: "kafka-configs.sh --bootstrap-server boot:9098 --command-config admin.properties --alter --entity-type topics --entity-name t --add-config a=b",
			broker: "Set a=b in server.properties", create: "kafka-topics.sh --bootstrap-server boot:9098 --command-config admin.properties --create --topic t --partitions 3 --replication-factor 2",
			compacted:     "kafka-topics.sh --bootstrap-server boot:9098 --command-config admin.properties --create --topic t --partitions 1 --config cleanup.policy=compact",
			grant:         "kafka-acls.sh --bootstrap-server boot:9098 --command-config admin.properties --add --allow-principal 'User:re lay' --operation Write --operation DescribeConfigs --topic t",
			grantCluster:  "kafka-acls.sh --bootstrap-server boot:9098 --command-config admin.properties --add --allow-principal 'User:re lay' --operation IdempotentWrite --cluster",
			transactional: "kafka-acls.sh --bootstrap-server boot:9098 --command-config admin.properties --add --allow-principal 'User:re lay' --operation Write --operation Describe --transactional-id n",
		},
		{host: "notkafka.amazonaws.com.example", topic: "kafka-configs.sh", broker: "Set a=b in server.properties", create: "kafka-topics.sh", compacted: "kafka-topics.sh", grant: "kafka-acls.sh", grantCluster: "kafka-acls.sh", transactional: "kafka-acls.sh"},
		{
			host: "b-1.shop.x1.c2.kafka.eu-west-1.amazonaws.com", topic: "kafka-configs.sh", broker: "aws kafka create-configuration", create: "kafka-topics.sh", compacted: "kafka-topics.sh",
			grant: "kafka-acls.sh", grantCluster: "kafka-acls.sh", transactional: "kafka-acls.sh",
		},
		{
			host: "boot-x.c1.kafka-serverless.eu-west-1.amazonaws.com.", iam: true, topic: "kafka-configs.sh", broker: "aws kafka", create: "kafka-topics.sh", compacted: "kafka-topics.sh",
			grant: "Allow kafka-cluster:WriteData, kafka-cluster:DescribeTopicDynamicConfiguration on topic t in the IAM policy", grantCluster: "Allow kafka-cluster:WriteDataIdempotently on the cluster",
			transactional: "Allow kafka-cluster:DescribeTransactionalId and kafka-cluster:AlterTransactionalId on the transactional id n in the IAM policy",
		},
		{
			host: "B0-PKC-1.eu.aws.confluent.cloud", topic: "confluent kafka topic update t --config a=b", broker: "confluent kafka cluster configuration update --config a=b",
			create: "confluent kafka topic create t --partitions 3", compacted: "confluent kafka topic create t --partitions 1 --config cleanup.policy=compact",
			grant:         "confluent kafka acl create --allow --service-account <the relay's> --operations write,describe-configs --topic t",
			grantCluster:  "confluent kafka acl create --allow --service-account <the relay's> --operations idempotent-write --cluster-scope",
			transactional: "confluent kafka acl create --allow --service-account <the relay's> --operations write,describe --transactional-id n",
		},
		{
			host: "kafka-1-shop.a.aivencloud.com", topic: "Set a=b in the Aiven console (topic t, advanced configuration)", broker: "avn service update <service> -c kafka.a=b",
			create: "avn service topic-create <service> t --partitions 3 --replication 2", compacted: "avn service topic-create <service> t --partitions 1 --replication 3 --cleanup-policy compact",
			grant:         "avn service kafka-acl-add <service> --principal 'User:re lay' --operation Write --topic t\navn service kafka-acl-add <service> --principal 'User:re lay' --operation DescribeConfigs --topic t",
			grantCluster:  "avn service kafka-acl-add <service> --principal 'User:re lay' --operation IdempotentWrite --cluster",
			transactional: "avn service kafka-acl-add <service> --principal 'User:re lay' --transactional-id n --operation Write\navn service kafka-acl-add <service> --principal 'User:re lay' --transactional-id n --operation Describe",
		},
		{
			host: "shop.servicebus.windows.net", topic: "in the properties of the event hub t", broker: "Event Hubs does not let you", create: "az eventhubs eventhub create --resource-group <group> --namespace-name <namespace> --name t",
			compacted: "--name t --cleanup-policy Compact", grant: "the claim Send, Manage on the event hub t", grantCluster: "kafka-acls.sh",
			transactional: "a tier of Event Hubs that supports transactions",
		},
	} {
		if c.iam {
			cfg.SASL.Mechanism = "AWS_MSK_IAM"
		} else {
			cfg.SASL.Mechanism = "SCRAM-SHA-512"
		}
		m := newKafkaFixes(cfg.Config)
		m.from(c.host)
		for _, got := range []struct {
			is   fix.Step
			want string
		}{
			{m.topic("t", "a=b"), c.topic},
			{m.broker("a=b"), c.broker},
			{m.create(kafka.NewTopic{Name: "t", Partitions: 3, Replicas: 2}), c.create},
			{m.create(kafka.NewTopic{Name: "t", Partitions: 1, Settings: map[string]string{"cleanup.policy": "compact"}}), c.compacted},
			{m.grant("t", "Write", "DescribeConfigs"), c.grant},
			{m.grantCluster("IdempotentWrite"), c.grantCluster},
			{m.grantTransactional("n"), c.transactional},
		} {
			if is := (fix.Fix{got.is}).Text(m.provider); !strings.Contains(is, got.want) {
				t.Errorf("%s: %s\nwant %s", c.host, is, got.want)
			}
		}
	}
}

// One claim is named once.
func TestEventHubsHasFewerClaimsThanThereAreRights(t *testing.T) {
	m := newKafkaFixes(kafka.Config{Brokers: []string{"shop.servicebus.windows.net:9093"}})
	m.from("shop.servicebus.windows.net")
	if got := (fix.Fix{m.grant("t", "Describe", "Read", "Write")}).Text(""); !strings.Contains(got, "the claim Listen, Send on") {
		t.Error(got)
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
		{kafka.Config{TLS: withTLS, SASL: kafka.SASL{Mechanism: "OAUTHBEARER", Token: "t"}}, "'User:…'"},
		{kafka.Config{TLS: withTLS}, "User:CN=test"},
		{kafka.Config{TLS: &kafka.TLS{CertFile: "gone", KeyFile: "gone"}}, "'User:…'"},
	} {
		c.cfg.Brokers = []string{"k:9092"}
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
			found := checkKafka(t.Context(), cfg, "", "n", func() Expected { return Expected{} })
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
