package aws

import (
	"net/url"
	"testing"
	"time"
)

var at = time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)

var example = Credentials{AccessKey: "AKIDEXAMPLE", SecretKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}

// The signatures are from AWS's published test suite: aws-signing-test-suite/v4 in awslabs/aws-c-auth, the files
// query-signed-request.txt of the named cases.
func TestTheSignaturesAreThoseOfTheTestSuite(t *testing.T) {
	unreserved := "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	for _, c := range []struct {
		name  string
		query url.Values
		want  string
	}{
		{"get-vanilla-query-order-key-case", url.Values{"Param2": {"value2"}, "Param1": {"value1"}}, "86012e2c9ad4d77369f5d81c11f75158aae4f895a085212cc6d3f923d300bed5"},
		{"get-vanilla-query-unreserved", url.Values{unreserved: {unreserved}}, "8e76a88a7433637b12778d5592799b29ad21ecd6cf6325051c21d86f0acda2bf"},
	} {
		got := Presign(example, "service", "us-east-1", "example.amazonaws.com", c.query, at, time.Hour)
		if s := got.Get("X-Amz-Signature"); s != c.want {
			t.Errorf("%s: signature %s, must be %s", c.name, s, c.want)
		}
	}
}

// The tokens were made with botocore 1.44.8 (SigV4QueryAuth), whose order of the parameters differs.
func TestATokenOfRDSIsThatOfBotocore(t *testing.T) {
	temporary := example
	temporary.SessionToken = "IQoJb3+/= token"
	const address = "shop.abc123.eu-central-1.rds.amazonaws.com:5432"
	const fixed = "&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20150830%2Feu-central-1%2Frds-db%2Faws4_request&X-Amz-Date=20150830T123600Z&X-Amz-Expires=900"
	for _, c := range []struct {
		by         Credentials
		user, want string
	}{
		{example, "walpost", address + "/?Action=connect&DBUser=walpost" + fixed +
			"&X-Amz-Signature=a3cb9402901e9d9468fac3ca4292c60e2c4774d03acebea36857ded6a58b00f3&X-Amz-SignedHeaders=host"},
		{temporary, "walpost_relay", address + "/?Action=connect&DBUser=walpost_relay" + fixed + "&X-Amz-Security-Token=IQoJb3%2B%2F%3D%20token" +
			"&X-Amz-Signature=077df4cad1f0c8377203a59766683a7472e0d2272be9bd705a767deebc9681a9&X-Amz-SignedHeaders=host"},
	} {
		if got := RDSToken(c.by, "eu-central-1", address, c.user, at); got != c.want {
			t.Errorf("%s\nmust be %s", got, c.want)
		}
	}
}

func TestTheRegionIsInTheNameOfAnEndpoint(t *testing.T) {
	t.Setenv("AWS_DEFAULT_REGION", "")
	for _, environment := range []string{"", "eu-west-3"} {
		t.Setenv("AWS_REGION", environment)
		for host, want := range map[string]string{
			"shop.abc123.eu-central-1.rds.amazonaws.com":          "eu-central-1",
			"my-db-1.cluster-abc.us-gov-west-1.rds.amazonaws.com": "us-gov-west-1",
			"shop.abc123.rds.cn-north-1.amazonaws.com.cn":         "cn-north-1",
			"b-1.shop.abc123.c2.kafka.eu-west-1.amazonaws.com":    "eu-west-1",
			"boot-x.c1.kafka-serverless.ap-south-1.amazonaws.com": "ap-south-1",
			"my-db-1.internal":                                     environment,
			"my-db-1.amazonaws.com":                                environment,
			"eu-central-1.rds.amazonaws.com.evil.example":          environment,
			"shop.abc123.eu-central-1.rds.amazonaws.com.localhost": environment,
		} {
			if got, err := Region(host); got != want || (err == nil) != (want != "") {
				t.Errorf("AWS_REGION=%s: %s is in %q, %v; must be %q", environment, host, got, err, want)
			}
		}
	}
}
