package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/statelog"
)

// The providers of Kafka. The brokers' names tell who runs them.
const (
	msk       fix.Provider = "Amazon MSK"
	confluent fix.Provider = "Confluent Cloud"
	aiven     fix.Provider = "Aiven"
	eventHubs fix.Provider = "Azure Event Hubs"
)

// kafkaFixes makes the steps that change what a check found, as the user of the provider does it.
type kafkaFixes struct {
	provider  fix.Provider
	iam       bool   // rights are policies of AWS, not ACLs
	principal string // as ACLs name the relay's user
	access    string // options that reach the cluster
}

func newKafkaFixes(cfg kafka.Config) kafkaFixes {
	f := kafkaFixes{access: " --bootstrap-server " + cfg.Brokers[0], iam: cfg.SASL.Mechanism == "AWS_MSK_IAM"}
	if cfg.TLS != nil || cfg.SASL.Mechanism != "" {
		f.access += " --command-config admin.properties"
	}
	user := cfg.SASL.Username
	switch {
	case user != "":
	case cfg.SASL.Mechanism != "":
		user = "…"
	case cfg.TLS != nil && cfg.TLS.CertFile != "":
		user = subject(cfg.TLS)
	default:
		user = "ANONYMOUS"
	}
	f.principal = shell("User:" + user)
	return f
}

// subject is the name in the client's certificate, which is its user unless ssl.principal.mapping.rules say otherwise.
func subject(t *kafka.TLS) string {
	if pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile); err == nil {
		if cert, err := x509.ParseCertificate(pair.Certificate[0]); err == nil {
			return cert.Subject.String()
		}
	}
	return "…"
}

// shell quotes a word for a POSIX shell if that is needed.
func shell(word string) string {
	if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:_=,@-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// from learns the provider by the name of a broker.
func (f *kafkaFixes) from(host string) {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	switch {
	case strings.Contains(host, ".kafka") && (strings.HasSuffix(host, ".amazonaws.com") || strings.HasSuffix(host, ".amazonaws.com.cn")):
		f.provider = msk
	case strings.HasSuffix(host, ".confluent.cloud"):
		f.provider = confluent
	case strings.HasSuffix(host, ".aivencloud.com"):
		f.provider = aiven
	case strings.HasSuffix(host, ".servicebus.windows.net"):
		f.provider = eventHubs
	}
}

// topic sets something on a topic: key=value.
func (f *kafkaFixes) topic(name, set string) fix.Step {
	switch f.provider {
	case confluent:
		return fix.Command("confluent kafka topic update " + name + " --config " + set)
	case aiven:
		return fix.Words(fmt.Sprintf("Set %s in the Aiven console (topic %s, advanced configuration) or in the resource aiven_kafka_topic.", set, name))
	case eventHubs:
		return fix.Words(fmt.Sprintf("Set %s in the properties of the event hub %s, if its tier has it.", set, name))
	default: // on Amazon MSK as for own brokers
	}
	return fix.Command("kafka-configs.sh" + f.access + " --alter --entity-type topics --entity-name " + name + " --add-config " + shell(set))
}

// compactSoon are the settings that keep a checkpoint topic small, as far as the provider lets everybody set them.
func (f *kafkaFixes) compactSoon() string {
	if f.provider == confluent {
		return "cleanup.policy=compact,segment.bytes=52428800"
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(statelog.Checkpoints[0])) {
		all = append(all, key+"="+statelog.Checkpoints[0][key])
	}
	return strings.Join(all, ",")
}

// broker sets something on all brokers.
func (f *kafkaFixes) broker(set string) fix.Step {
	switch f.provider {
	case msk:
		return fix.Words("Set " + set + " in the cluster's configuration (aws kafka create-configuration, then update-cluster-configuration).")
	case confluent:
		return fix.Command("confluent kafka cluster configuration update --config " + set + " # dedicated clusters")
	case aiven:
		key, value, _ := strings.Cut(set, "=")
		return fix.Command("avn service update <service> -c kafka." + strings.ReplaceAll(key, ".", "_") + "=" + value)
	case eventHubs:
		return fix.Words("Event Hubs does not let you set " + set + ".")
	default:
		return fix.Words("Set " + set + " in server.properties of the brokers.")
	}
}

// create makes a topic. Managed brokers take only the settings that everybody may set.
func (f *kafkaFixes) create(how kafka.NewTopic) fix.Step {
	flag := func(cmd, flag string) fix.Step {
		if how.Settings["cleanup.policy"] == "compact" {
			return fix.Command(cmd + flag)
		}
		return fix.Command(cmd)
	}
	cmd := "kafka-topics.sh" + f.access + " --create --topic " + how.Name
	switch f.provider {
	case eventHubs:
		return flag("az eventhubs eventhub create --resource-group <group> --namespace-name <namespace> --name "+how.Name, " --cleanup-policy Compact")
	case aiven: // wants both numbers
		partitions, replicas := max(1, how.Partitions), how.Replicas
		if replicas < 1 {
			replicas = 3
		}
		return flag(fmt.Sprintf("avn service topic-create <service> %s --partitions %d --replication %d", how.Name, partitions, replicas), " --cleanup-policy compact")
	case confluent:
		cmd = "confluent kafka topic create " + how.Name
	default: // on Amazon MSK as for own brokers
	}
	if how.Partitions > 0 {
		cmd += fmt.Sprintf(" --partitions %d", how.Partitions)
	}
	if how.Replicas > 0 && f.provider != confluent {
		cmd += fmt.Sprintf(" --replication-factor %d", how.Replicas)
	}
	if f.provider == confluent {
		return flag(cmd, " --config cleanup.policy=compact")
	}
	for _, key := range slices.Sorted(maps.Keys(how.Settings)) {
		cmd += " --config " + key + "=" + how.Settings[key]
	}
	return fix.Command(cmd)
}

// actions are what policies of AWS call operations on a topic.
var actions = map[string]string{
	"Write": "WriteData", "Read": "ReadData", "Describe": "DescribeTopic", "DescribeConfigs": "DescribeTopicDynamicConfiguration", "Create": "CreateTopic",
}

// claims are what Event Hubs calls them.
var claims = map[string]string{"Write": "Send", "Read": "Listen", "Describe": "Listen", "DescribeConfigs": "Manage", "Create": "Manage"}

// grant lets the relay's user do something with a topic.
func (f *kafkaFixes) grant(topic string, operations ...string) fix.Step {
	mapped := func(names map[string]string, prefix string) string {
		var all []string
		for _, op := range operations {
			if name := prefix + names[op]; len(all) == 0 || all[len(all)-1] != name {
				all = append(all, name)
			}
		}
		return strings.Join(all, ", ")
	}
	switch {
	case f.iam:
		return fix.Words("Allow " + mapped(actions, "kafka-cluster:") + " on topic " + topic + " in the IAM policy of the relay's role.")
	case f.provider == confluent:
		return fix.Command("confluent kafka acl create --allow --service-account <the relay's> --operations " + kebab(operations) + " --topic " + topic)
	case f.provider == eventHubs:
		return fix.Words("Give the relay's access policy the claim " + mapped(claims, "") + " on the event hub " + topic + ".")
	case f.provider == aiven:
		var all []string
		for _, op := range operations {
			all = append(all, "avn service kafka-acl-add <service> --principal "+f.principal+" --operation "+op+" --topic "+topic)
		}
		return fix.Command(strings.Join(all, "\n"))
	}
	return fix.Command("kafka-acls.sh" + f.access + " --add --allow-principal " + f.principal + " --operation " + strings.Join(operations, " --operation ") + " --topic " + topic)
}

// grantCluster lets the relay's user do something with the cluster: "IdempotentWrite" or "Describe".
func (f *kafkaFixes) grantCluster(operation string) fix.Step {
	switch {
	case f.iam && operation == "IdempotentWrite":
		return fix.Words("Allow kafka-cluster:WriteDataIdempotently on the cluster in the IAM policy of the relay's role.")
	case f.iam:
		return fix.Words("Allow kafka-cluster:" + operation + "Cluster on the cluster in the IAM policy of the relay's role.")
	case f.provider == confluent:
		return fix.Command("confluent kafka acl create --allow --service-account <the relay's> --operations " + kebab([]string{operation}) + " --cluster-scope")
	case f.provider == aiven:
		return fix.Command("avn service kafka-acl-add <service> --principal " + f.principal + " --operation " + operation + " --cluster")
	}
	return fix.Command("kafka-acls.sh" + f.access + " --add --allow-principal " + f.principal + " --operation " + operation + " --cluster")
}

// grantTransactional lets the relay's user write with a transactional id.
func (f *kafkaFixes) grantTransactional(id string) fix.Step {
	switch {
	case f.iam:
		return fix.Words("Allow kafka-cluster:DescribeTransactionalId and kafka-cluster:AlterTransactionalId on the transactional id " + id + " in the IAM policy of the relay's role.")
	case f.provider == confluent:
		return fix.Command("confluent kafka acl create --allow --service-account <the relay's> --operations write,describe --transactional-id " + id)
	case f.provider == eventHubs:
		return fix.Words("Use a tier of Event Hubs that supports transactions, or another policy than park_key in delivery.on_poison.")
	case f.provider == aiven:
		add := "avn service kafka-acl-add <service> --principal " + f.principal + " --transactional-id " + id + " --operation "
		return fix.Command(add + "Write\n" + add + "Describe")
	}
	return fix.Command("kafka-acls.sh" + f.access + " --add --allow-principal " + f.principal + " --operation Write --operation Describe --transactional-id " + id)
}

// kebab writes operations as Confluent's tool wants them: DescribeConfigs is describe-configs.
func kebab(operations []string) string {
	words := hump.ReplaceAllString(strings.Join(operations, ","), "$1-$2")
	return strings.ToLower(words)
}

var hump = regexp.MustCompile(`([a-z])([A-Z])`)
