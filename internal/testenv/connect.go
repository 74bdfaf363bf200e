//go:build linux || darwin

package testenv

import (
	_ "embed"
	"path/filepath"
)

var (
	//go:embed connect_pom.xml
	connectPOM []byte
	//go:embed connect_debezium_pom.xml
	debeziumPOM []byte
)

// As in connect_pom.xml and connect_debezium_pom.xml.
const (
	connectVersion  = "4.3.0"
	debeziumVersion = "3.6.1.Final"
	// The jars of newer versions, such as 3.2.5, with which Debezium is tested, are not on Maven Central.
	convertersVersion = "2.6.13.Final"
)

// ConnectJars are Kafka Connect with Debezium's Postgres connector: lib/*.jar is the worker with Apicurio's converters, and
// plugins/debezium/*.jar the connector.
var ConnectJars = Jars{
	Name: "connect-" + connectVersion + "-debezium-" + debeziumVersion + "-apicurio-" + convertersVersion,
	What: "Kafka Connect " + connectVersion + " and Debezium " + debeziumVersion,
	POMs: map[string][]byte{"lib": connectPOM, filepath.Join("plugins", "debezium"): debeziumPOM},
}
