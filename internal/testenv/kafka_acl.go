//go:build linux || darwin

package testenv

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"testing"

	"github.com/walpost/walpost/internal/localpg"
)

// KafkaWithACLs returns a private cluster of one node with an authorizer, and an address where
// clients log in by SASL PLAIN as one of users (names and passwords). ACLs say what they may do,
// and there are no ACLs at first. Clients of Brokers need no login and may do everything. props are
// as for KafkaPrivate.
func KafkaWithACLs(t testing.TB, users, props map[string]string) (c *KafkaCluster, asked string) {
	t.Helper()
	port, err := localpg.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	asked = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	jaas := "org.apache.kafka.common.security.plain.PlainLoginModule required"
	for _, name := range slices.Sorted(maps.Keys(users)) {
		jaas += fmt.Sprintf(" user_%s=%q", name, users[name])
	}
	all := map[string]string{
		"+listeners":                                  "ASKED://" + asked,
		"+advertised.listeners":                       "ASKED://" + asked,
		"+listener.security.protocol.map":             "ASKED:SASL_PLAINTEXT",
		"inter.broker.listener.name":                  "PLAINTEXT",
		"listener.name.asked.sasl.enabled.mechanisms": "PLAIN",
		"listener.name.asked.plain.sasl.jaas.config":  jaas + ";",
		"authorizer.class.name":                       "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                                 "User:ANONYMOUS",
	}
	maps.Copy(all, props)
	return KafkaPrivate(t, 1, all), asked
}
