package kafka

import (
	"context"
	"reflect"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/walpost/walpost/internal/aws"
	"github.com/walpost/walpost/internal/conf"
)

func (s *SASL) validate(found *conf.Problems) {
	needs := func(field string, have ...string) {
		if strings.Join(have, "") == "" {
			found.Add("kafka.sasl."+field, conf.Required, "for "+s.Mechanism, nil)
		}
	}
	s.Password.Check(found, "kafka.sasl.password", s.PasswordFile)
	s.Token.Check(found, "kafka.sasl.token", s.TokenFile)
	conf.Secret(s.AccessKey).Check(found, "kafka.sasl.access_key", s.AccessKeyFile)
	s.ClientSecret.Check(found, "kafka.sasl.client_secret", s.ClientSecretFile)
	s.SecretKey.Check(found, "kafka.sasl.secret_key", s.SecretKeyFile)
	s.SessionToken.Check(found, "kafka.sasl.session_token", s.SessionTokenFile)
	switch s.Mechanism {
	case "":
		if !reflect.ValueOf(*s).IsZero() {
			found.Add("kafka.sasl.mechanism", conf.Required, "with any other key of kafka.sasl", nil)
		}
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
		needs("username", s.Username)
		needs("password", string(s.Password), s.PasswordFile)
	case "OAUTHBEARER":
		s.validateTokens(found, needs)
	case "AWS_MSK_IAM":
		if (s.AccessKey == "" && s.AccessKeyFile == "") != (s.SecretKey == "" && s.SecretKeyFile == "") {
			found.Add("kafka.sasl", conf.MustHave, "both access_key and secret_key, or neither (then both come from the environment)", nil)
		}
	}
}

func (s *SASL) mechanism() sasl.Mechanism {
	user := func() (user, pass string, err error) {
		pass, err = s.Password.Or(s.PasswordFile)
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
		return &bearer{SASL: *s}
	case "AWS_MSK_IAM":
		return iam{region: s.Region, credentials: s.credentials}
	}
	return nil
}

func (s *SASL) credentials(ctx context.Context) (c aws.Credentials, err error) {
	if s.AccessKey == "" && s.AccessKeyFile == "" {
		return aws.FromEnvironment(ctx)
	}
	if c.AccessKey, err = conf.Secret(s.AccessKey).Or(s.AccessKeyFile); err != nil {
		return c, err
	}
	if c.SecretKey, err = s.SecretKey.Or(s.SecretKeyFile); err != nil {
		return c, err
	}
	c.SessionToken, err = s.SessionToken.Or(s.SessionTokenFile)
	return c, err
}
