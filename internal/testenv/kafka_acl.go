//go:build linux || darwin

package testenv

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/localpg"
)

// KafkaWithACLs returns a private cluster of one node with an authorizer, and an address where
// clients log in by SASL PLAIN as one of users (names and passwords). ACLs say what they may do,
// and there are no ACLs at first. Clients of Brokers need no login and may do everything. props are
// as for KafkaPrivate.
func KafkaWithACLs(t testing.TB, users, props map[string]string) (c *KafkaCluster, asked string) {
	t.Helper()
	all := map[string]string{
		"listener.name.asked.sasl.enabled.mechanisms": "PLAIN",
		"listener.name.asked.plain.sasl.jaas.config":  PlainUsers(users),
	}
	maps.Copy(all, props)
	c, at := KafkaListeners(t, map[string]string{"ASKED": "SASL_PLAINTEXT"}, all)
	return c, at["ASKED"]
}

// PlainUsers is the broker's setting of users (names and passwords) for SASL PLAIN.
func PlainUsers(users map[string]string) string {
	jaas := "org.apache.kafka.common.security.plain.PlainLoginModule required"
	for _, name := range slices.Sorted(maps.Keys(users)) {
		jaas += fmt.Sprintf(" user_%s=%q", name, users[name])
	}
	return jaas + ";"
}

// Bearer is the broker's setting for SASL OAUTHBEARER with tokens that nobody signs.
const Bearer = `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`

// Token is an unsecured JWT of a principal, which Kafka accepts unless it is told to check signatures.
func Token(principal string, valid time.Duration) string {
	now := time.Now()
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return part(`{"alg":"none"}`) + "." + part(fmt.Sprintf(`{"sub":%q,"iat":%d,"exp":%d}`, principal, now.Unix()-1, now.Add(valid).Unix())) + "."
}

// KafkaListeners is KafkaWithACLs with other listeners, given as their names and protocols. It returns
// the address of each.
func KafkaListeners(t testing.TB, protocols, props map[string]string) (c *KafkaCluster, at map[string]string) {
	t.Helper()
	at = map[string]string{}
	var listeners, names []string
	for _, name := range slices.Sorted(maps.Keys(protocols)) {
		port, err := localpg.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		at[name] = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		listeners, names = append(listeners, name+"://"+at[name]), append(names, name+":"+protocols[name])
	}
	all := map[string]string{
		"+listeners":                      strings.Join(listeners, ","),
		"+advertised.listeners":           strings.Join(listeners, ","),
		"+listener.security.protocol.map": strings.Join(names, ","),
		"inter.broker.listener.name":      "PLAINTEXT",
		"authorizer.class.name":           "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                     "User:ANONYMOUS",
	}
	maps.Copy(all, props)
	return KafkaPrivate(t, 1, all), at
}
