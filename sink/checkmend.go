package sink

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/kafka"
)

// A provider is who runs the brokers, as their names tell, which decides how something is changed. "" is the user.
type provider string

const (
	msk       provider = "Amazon MSK"
	confluent provider = "Confluent Cloud"
	aiven     provider = "Aiven"
	eventHubs provider = "Azure Event Hubs"
)

// mend makes the commands that change what a doctor found.
type mend struct {
	provider  provider
	iam       bool   // rights are policies of AWS, not ACLs
	principal string // as ACLs name the relay's user
	user      string
	to        string // options that reach the cluster
}

func newMend(cfg Config) mend {
	m := mend{to: " --bootstrap-server " + cfg.Brokers[0], iam: cfg.SASL.Mechanism == "AWS_MSK_IAM"}
	if cfg.TLS != nil || cfg.SASL.Mechanism != "" {
		m.to += " --command-config admin.properties"
	}
	m.user = cfg.SASL.Username
	switch {
	case m.user != "":
	case cfg.SASL.Mechanism != "":
		m.user = "…"
	case cfg.TLS != nil && cfg.TLS.CertFile != "":
		m.user = subject(cfg.TLS)
	default:
		m.user = "ANONYMOUS"
	}
	m.principal = shell("User:" + m.user)
	return m
}

// subject is the name in the client's certificate, which is its user where no ssl.principal.mapping.rules say otherwise.
func subject(t *kafka.TLS) string {
	if pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile); err == nil {
		if cert, err := x509.ParseCertificate(pair.Certificate[0]); err == nil {
			return cert.Subject.String()
		}
	}
	return "…"
}

// shell quotes a word for a POSIX shell where that is needed.
func shell(word string) string {
	if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:_=,@-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// from learns of the provider by the name of a broker.
func (m *mend) from(host string) {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	switch {
	case strings.Contains(host, ".kafka") && (strings.HasSuffix(host, ".amazonaws.com") || strings.HasSuffix(host, ".amazonaws.com.cn")):
		m.provider = msk
	case strings.HasSuffix(host, ".confluent.cloud"):
		m.provider = confluent
	case strings.HasSuffix(host, ".aivencloud.com"):
		m.provider = aiven
	case strings.HasSuffix(host, ".servicebus.windows.net"):
		m.provider = eventHubs
	}
}

// topic sets something on a topic: key=value.
func (m *mend) topic(name, set string) string {
	switch m.provider {
	case confluent:
		return "confluent kafka topic update " + name + " --config " + set
	case aiven:
		return fmt.Sprintf("In the Aiven console, topic %s, advanced configuration: %s (or the resource aiven_kafka_topic)", name, set)
	case eventHubs:
		return fmt.Sprintf("In the properties of the event hub %s, as far as its tier has it: %s", name, set)
	case msk: // as one's own
	}
	return "kafka-configs.sh" + m.to + " --alter --entity-type topics --entity-name " + name + " --add-config " + shell(set)
}

// compactSoon is what keeps a checkpoint topic small, as far as the provider lets everybody set it.
func (m *mend) compactSoon() string {
	if m.provider == confluent {
		return "cleanup.policy=compact,segment.bytes=52428800"
	}
	return join(compactedSoon)
}

// broker sets something on all brokers.
func (m *mend) broker(set string) string {
	switch m.provider {
	case msk:
		return "Set " + set + " in the cluster's configuration (aws kafka create-configuration, then update-cluster-configuration)"
	case confluent:
		return "confluent kafka cluster configuration update --config " + set + " (dedicated clusters)"
	case aiven:
		key, value, _ := strings.Cut(set, "=")
		return "avn service update <service> -c kafka." + strings.ReplaceAll(key, ".", "_") + "=" + value
	case eventHubs:
		return "Event Hubs does not let you set " + set
	}
	return "Set " + set + " in server.properties of the brokers"
}

// create makes a topic. Providers take those that they let everybody set.
func (m *mend) create(how kafka.NewTopic) string {
	flag := func(cmd, flag string) string {
		if how.Settings["cleanup.policy"] == "compact" {
			return cmd + flag
		}
		return cmd
	}
	cmd := "kafka-topics.sh" + m.to + " --create --topic " + how.Name
	switch m.provider {
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
	case msk: // as one's own
	}
	if how.Partitions > 0 {
		cmd += fmt.Sprintf(" --partitions %d", how.Partitions)
	}
	if how.Replicas > 0 && m.provider != confluent {
		cmd += fmt.Sprintf(" --replication-factor %d", how.Replicas)
	}
	if m.provider == confluent {
		return flag(cmd, " --config cleanup.policy=compact")
	}
	for _, key := range slices.Sorted(maps.Keys(how.Settings)) {
		cmd += " --config " + key + "=" + how.Settings[key]
	}
	return cmd
}

// actions are what policies of AWS call operations on a topic.
var actions = map[string]string{
	"Write": "WriteData", "Read": "ReadData", "Describe": "DescribeTopic", "DescribeConfigs": "DescribeTopicDynamicConfiguration", "Create": "CreateTopic",
}

// claims are what Event Hubs calls them.
var claims = map[string]string{"Write": "Send", "Read": "Listen", "Describe": "Listen", "DescribeConfigs": "Manage", "Create": "Manage"}

// grant lets the relay's user do something with a topic.
func (m *mend) grant(topic string, operations ...string) string {
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
	case m.iam:
		return "Allow " + mapped(actions, "kafka-cluster:") + " on topic " + topic + " in the IAM policy of the relay's role"
	case m.provider == confluent:
		return "confluent kafka acl create --allow --service-account <the relay's> --operations " + kebab(operations) + " --topic " + topic
	case m.provider == eventHubs:
		return "Give the relay's access policy the claim " + mapped(claims, "") + " on the event hub " + topic
	case m.provider == aiven:
		var all []string
		for _, op := range operations {
			all = append(all, "avn service kafka-acl-add <service> --principal "+m.principal+" --operation "+op+" --topic "+topic)
		}
		return strings.Join(all, "\n")
	}
	return "kafka-acls.sh" + m.to + " --add --allow-principal " + m.principal + " --operation " + strings.Join(operations, " --operation ") + " --topic " + topic
}

// grantCluster lets the relay's user do something with the cluster: "IdempotentWrite" or "Describe".
func (m *mend) grantCluster(operation string) string {
	switch {
	case m.iam && operation == "IdempotentWrite":
		return "Allow kafka-cluster:WriteDataIdempotently on the cluster in the IAM policy of the relay's role"
	case m.iam:
		return "Allow kafka-cluster:" + operation + "Cluster on the cluster in the IAM policy of the relay's role"
	case m.provider == confluent:
		return "confluent kafka acl create --allow --service-account <the relay's> --operations " + kebab([]string{operation}) + " --cluster-scope"
	case m.provider == aiven:
		return "avn service kafka-acl-add <service> --principal " + m.principal + " --operation " + operation + " --cluster"
	}
	return "kafka-acls.sh" + m.to + " --add --allow-principal " + m.principal + " --operation " + operation + " --cluster"
}

// kebab writes operations as Confluent's tool wants them: DescribeConfigs is describe-configs.
func kebab(operations []string) string {
	var b strings.Builder
	for i, op := range operations {
		if i > 0 {
			b.WriteByte(',')
		}
		for j, r := range op {
			if r >= 'A' && r <= 'Z' {
				if j > 0 {
					b.WriteByte('-')
				}
				r += 'a' - 'A'
			}
			b.WriteRune(r)
		}
	}
	return b.String()
}
