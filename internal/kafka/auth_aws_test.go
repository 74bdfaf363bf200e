package kafka

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sasl/aws"

	ours "github.com/walpost/walpost/internal/aws"
)

// Two relays of one process may be in two regions, and neither changes the environment.
func TestTwoRelaysOfOneProcessHaveTheirOwnRegions(t *testing.T) {
	t.Setenv("AWS_REGION", "") // restores it afterwards
	if err := os.Unsetenv("AWS_REGION"); err != nil {
		t.Fatal(err)
	}
	for _, region := range []string{"eu-west-1", "us-east-2", "eu-west-1"} {
		cfg := Config{Brokers: []string{"kafka.internal:9098"}}
		cfg.SASL = SASL{Mechanism: "AWS_MSK_IAM", AccessKey: "AKIDEXAMPLE", SecretKey: "secret", Region: region}
		cfg.Options()
		_, first, err := cfg.SASL.mechanism().Authenticate(t.Context(), "kafka.internal:9098")
		if err != nil {
			t.Fatal(err)
		}
		got := fields(t, first)
		if want := "AKIDEXAMPLE/" + got["x-amz-date"][:8] + "/" + region + "/kafka-cluster/aws4_request"; got["x-amz-credential"] != want {
			t.Errorf("signed for %s, must be %s", got["x-amz-credential"], want)
		}
		if env, set := os.LookupEnv("AWS_REGION"); set {
			t.Errorf("AWS_REGION is %q now", env)
		}
	}
}

// The signature is the one of the library, where the library can be told the region.
func TestTheSignatureForARegionIsTheLibrarys(t *testing.T) {
	for _, auth := range []aws.Auth{
		{AccessKey: "AKIDEXAMPLE", SecretKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"},
		{AccessKey: "AKIDEXAMPLE", SecretKey: "s", SessionToken: "IQoJb3+/= token with spaces"},
	} {
		const host = "b-1.shop.abc.c2.kafka.eu-west-1.amazonaws.com"
		auth.UserAgent = "walpost"
		_, first, err := auth.AsManagedStreamingIAMMechanism().Authenticate(t.Context(), host+":9098")
		if err != nil {
			t.Fatal(err)
		}
		want := fields(t, first)
		at, err := time.Parse("20060102T150405Z", want["x-amz-date"])
		if err != nil {
			t.Fatal(err)
		}
		own, err := connectToMSK(ours.Credentials{AccessKey: auth.AccessKey, SecretKey: auth.SecretKey, SessionToken: auth.SessionToken}, "eu-west-1", host, at)
		if got := fields(t, own); err != nil || !maps.Equal(got, want) {
			t.Errorf("%v, %v\nmust be %v", got, err, want)
		}
	}
}

// Temporary credentials are three files, which another program replaces.
func TestAWSCredentialsAreReadAgainAtEveryLogin(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cfg := Config{Brokers: []string{"kafka.internal:9098"}}
	cfg.SASL = SASL{
		Mechanism: "AWS_MSK_IAM", Region: "eu-west-1",
		AccessKeyFile: write("key", "FIRST"), SecretKeyFile: write("secret", "a"), SessionTokenFile: write("token", "one"),
	}
	if found := cfg.Validate(); len(found) > 0 {
		t.Fatal(found)
	}
	login := cfg.SASL.mechanism()
	for _, want := range []string{"FIRST one", "SECOND two"} {
		_, first, err := login.Authenticate(t.Context(), "kafka.internal:9098")
		if err != nil {
			t.Fatal(err)
		}
		got := fields(t, first)
		key, _, _ := strings.Cut(got["x-amz-credential"], "/")
		if got := key + " " + got["x-amz-security-token"]; got != want {
			t.Errorf("logged in with %s, must be %s", got, want)
		}
		write("key", "SECOND")
		write("token", "two")
	}
	cfg.SASL.AccessKey = "THIRD"
	if found := cfg.Validate(); len(found) != 1 || found[0].Field != "kafka.sasl.access_key_file" {
		t.Errorf("with two keys: %v", found)
	}
}

func fields(t *testing.T, b []byte) (m map[string]string) {
	t.Helper()
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}
