package kafka

import (
	"encoding/json"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sasl/aws"
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
		own, err := regional{region: "eu-west-1"}.sign(auth, host, at)
		if got := fields(t, own); err != nil || !maps.Equal(got, want) {
			t.Errorf("%v, %v\nmust be %v", got, err, want)
		}
	}
}

func fields(t *testing.T, b []byte) (m map[string]string) {
	t.Helper()
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}
