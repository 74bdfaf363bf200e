package kafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/secret"
)

func (s SASL) validate(found *fault.Problems) {
	one := func(field, value, file string) {
		field = "kafka.sasl." + field
		switch {
		case value != "" && file != "":
			found.Add(field+"_file", "contradicts %s: write one of both", field)
		case file != "":
			if _, err := secret.Read(file); err != nil {
				found.Add(field+"_file", "%v", err)
			}
		}
	}
	needs := func(field string, values ...string) {
		if strings.Join(values, "") == "" {
			found.Add("kafka.sasl."+field, "is required for %s", s.Mechanism)
		}
	}
	one("password", s.Password, s.PasswordFile)
	one("token", s.Token, s.TokenFile)
	one("secret_key", s.SecretKey, s.SecretKeyFile)
	switch s.Mechanism {
	case "":
		if !reflect.ValueOf(s).IsZero() {
			found.Add("kafka.sasl.mechanism", "is required with any other key of kafka.sasl: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM")
		}
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
		needs("username", s.Username)
		needs("password", s.Password, s.PasswordFile)
	case "OAUTHBEARER":
		needs("token", s.Token, s.TokenFile)
	case "AWS_MSK_IAM":
		if (s.AccessKey == "") != (s.SecretKey == "" && s.SecretKeyFile == "") {
			found.Add("kafka.sasl", "access_key and secret_key must both be set or both be left out (then they come from the environment)")
		}
	default:
		found.Add("kafka.sasl.mechanism", "must be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM (got %q)", s.Mechanism)
	}
}

// secretOf is a value, or what its file has now.
func secretOf(value, path string) (string, error) {
	if path == "" {
		return value, nil
	}
	text, err := secret.Read(path)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	return text, nil
}

func (s SASL) mechanism() sasl.Mechanism {
	user := func() (user, pass string, err error) {
		pass, err = secretOf(s.Password, s.PasswordFile)
		return s.Username, pass, err
	}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			u, p, err := user()
			return plain.Auth{User: u, Pass: p}, err
		})
	case "SCRAM-SHA-256", "SCRAM-SHA-512":
		f := func(context.Context) (scram.Auth, error) {
			u, p, err := user()
			return scram.Auth{User: u, Pass: p}, err
		}
		if s.Mechanism == "SCRAM-SHA-256" {
			return scram.Sha256(f)
		}
		return scram.Sha512(f)
	case "OAUTHBEARER":
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			t, err := secretOf(s.Token, s.TokenFile)
			return oauth.Auth{Token: t, Extensions: s.Extensions}, err
		})
	case "AWS_MSK_IAM":
		auth := func(context.Context) (aws.Auth, error) { return s.awsAuth() }
		if s.Region != "" {
			return regional{region: s.Region, auth: auth}
		}
		return aws.ManagedStreamingIAM(auth)
	}
	return nil
}

func (s SASL) awsAuth() (aws.Auth, error) {
	a := aws.Auth{AccessKey: s.AccessKey, SessionToken: s.SessionToken}
	var err error
	if a.SecretKey, err = secretOf(s.SecretKey, s.SecretKeyFile); err != nil {
		return a, err
	}
	if a.AccessKey == "" {
		a.AccessKey, a.SecretKey = os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
		a.SessionToken = os.Getenv("AWS_SESSION_TOKEN")
	}
	if a.AccessKey == "" || a.SecretKey == "" {
		return a, errors.New("kafka.sasl: no AWS credentials in access_key and secret_key, nor in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	}
	return a, nil
}
