package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/statelog"
)

// kafkaFixes makes the steps that change what a check found, as commands of Kafka's own tools.
type kafkaFixes struct {
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
	host, _, _ := strings.Cut(cfg.Brokers[0], ":")
	switch {
	case user != "" && strings.HasSuffix(host, ".confluent.cloud"): // it's an API key
		user = "<service account>"
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

// topic sets something on a topic: key=value.
func (f *kafkaFixes) topic(name, set string) fix.Step {
	return fix.Command("kafka-configs.sh" + f.access + " --alter --entity-type topics --entity-name " + name + " --add-config " + shell(set))
}

// compactSoon are the settings that keep a checkpoint topic small.
func compactSoon() string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(statelog.Checkpoints[0])) {
		all = append(all, key+"="+statelog.Checkpoints[0][key])
	}
	return strings.Join(all, ",")
}

// brokerSetting sets something on all brokers.
func brokerSetting(set string) fix.Step {
	return fix.Words("Set " + set + " in server.properties of the brokers, or in the configuration of the managed cluster.")
}

// create makes a topic.
func (f *kafkaFixes) create(how kafka.NewTopic) fix.Step {
	cmd := "kafka-topics.sh" + f.access + " --create --topic " + how.Name
	if how.Partitions > 0 {
		cmd += fmt.Sprintf(" --partitions %d", how.Partitions)
	}
	if how.Replicas > 0 {
		cmd += fmt.Sprintf(" --replication-factor %d", how.Replicas)
	}
	for _, key := range slices.Sorted(maps.Keys(how.Settings)) {
		cmd += " --config " + key + "=" + how.Settings[key]
	}
	return fix.Command(cmd)
}

// actions are what policies of AWS call operations on a topic. Kafka's Delete on a topic also allows to delete records, and AWS defines
// DeleteTopic as that operation (https://docs.aws.amazon.com/msk/latest/developerguide/kafka-actions.html).
var actions = map[string]string{
	"Write": "WriteData", "Read": "ReadData", "Describe": "DescribeTopic", "DescribeConfigs": "DescribeTopicDynamicConfiguration", "Create": "CreateTopic",
	"Delete": "DeleteTopic",
}

// grant lets the relay's user do something with a topic.
func (f *kafkaFixes) grant(topic string, operations ...string) fix.Step {
	names := make([]string, len(operations))
	for i, operation := range operations {
		names[i] = actions[operation]
	}
	return f.allow(operations, "--topic "+topic, names, "topic "+topic)
}

// grantIdempotentWrite lets the relay's user have a producer id.
func (f *kafkaFixes) grantIdempotentWrite() fix.Step {
	return f.allow([]string{"IdempotentWrite"}, "--cluster", []string{"WriteDataIdempotently"}, "the cluster")
}

// grantTransactional lets the relay's user write with a transactional id.
func (f *kafkaFixes) grantTransactional(id string) fix.Step {
	return f.allow([]string{"Write", "Describe"}, "--transactional-id "+id, []string{"AlterTransactionalId", "DescribeTransactionalId"}, "the transactional id "+id)
}

// allow is an ACL, or with IAM a permission for the actions.
func (f *kafkaFixes) allow(operations []string, resource string, actions []string, what string) fix.Step {
	if f.iam {
		return fix.Words("Allow kafka-cluster:" + strings.Join(actions, ", kafka-cluster:") + " on " + what + " in the IAM policy of the relay's role.")
	}
	return fix.Command("kafka-acls.sh" + f.access + " --add --allow-principal " + f.principal + " --operation " + strings.Join(operations, " --operation ") + " " + resource)
}
