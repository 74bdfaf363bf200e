package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/walpost/walpost"
)

// printed is what walpost config print prints for a file.
func printed(t *testing.T, text string, args ...string) (out, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "walpost.yaml")
	write(t, file, text)
	var stdout, stderr bytes.Buffer
	if code := run(append([]string{"config", "print", "--config", file}, args...), &stdout, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	return stdout.String(), file
}

func TestPrintGivesTheOriginOfEachValue(t *testing.T) {
	t.Setenv("DB_HOST", "db.internal")
	t.Setenv("DB_PASSWORD", "topsecret")
	t.Setenv("BROKER", "k2:9092")
	t.Setenv("WALPOST_LOG_LEVEL", "debug")
	out, file := printed(t, `source:
  dsn: postgres://walpost:hunter2@${DB_HOST}/shop?sslpassword=hunter2
  tables: [public.a, public.b]
kafka:
  brokers: [k1:9092, "${BROKER}"]
  tls: {}
  sasl: {mechanism: PLAIN, username: u, password: "${DB_PASSWORD:-topsecret}"}
records: {headers: [{insert: a, value: b}]}
`, "--slot", "shop")
	for _, want := range []string{
		"  dsn: postgres://walpost@db.internal/shop # " + file + ":2:8, ${DB_HOST}\n",
		"  tables: [public.a, public.b] # " + file + ":3:11\n",
		"  slot: shop # --slot\n",
		"  publication: walpost # default\n",
		"  brokers: ['k1:9092', 'k2:9092'] # " + file + ":5:12, ${BROKER}\n",
		"  tls: {}\n",
		"    password: (secret) # " + file + ":7:51, ${DB_PASSWORD}\n",
		"  headers: [{insert: a, value: b}] # ",
		"  level: debug # WALPOST_LOG_LEVEL\n",
		"  format: json # default\n",
		"  interval: 10s # default\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	for _, secret := range []string{"hunter2", "topsecret"} {
		if strings.Contains(out, secret) {
			t.Errorf("%q is in\n%s", secret, out)
		}
	}
	for _, absent := range []string{"password_file", "  table:", "cert_file", "unsupported"} {
		if strings.Contains(out, absent) {
			t.Errorf("%q has no value and is in\n%s", absent, out)
		}
	}
}

// A value whose keyword is not known may be a password. Where the password is not certain, the whole DSN is masked.
func TestPrintMasksWhatMayBeAPassword(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://u:12?hunter2@h": "dsn: (secret)", "host=h pasword=hunter2": "dsn: host=h pasword=(secret)", "postgres://h/d?pasword=hunter2": "dsn: postgres://h/d?pasword=(secret)",
	} {
		out, _ := printed(t, "source: {dsn: '"+dsn+"', table: a}\nkafka: {brokers: ['k:9092']}\n")
		if strings.Contains(out, "hunter2") || !strings.Contains(out, want) {
			t.Errorf("%s:\n%s", dsn, out)
		}
	}
}

// What print prints is the configuration: read as a file, it is the same.
func TestPrintedConfigurationIsTheSame(t *testing.T) {
	for _, name := range files(t, "testdata/config/*.good.yaml") {
		if strings.Contains(name, "variables") || strings.Contains(name, "secrets") { // a dollar sign, and masked secrets
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out, file := printed(t, string(text))
		want, err := loadConfig(file, testEnv, nil, nil, (*walpost.Config).Validate)
		if err != nil {
			t.Fatal(err)
		}
		write(t, file, out)
		got, err := loadConfig(file, testEnv, nil, nil, (*walpost.Config).Validate)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		got.read, got.Source.DSN = want.read, want.Source.DSN // the words of the DSN are in another order
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s\ngot  %#v\nwant %#v", out, got, want)
		}
	}
}
