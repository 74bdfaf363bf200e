package pg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/aws"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
)

// renewPassword sets the password of one connection, if it has to be made for it.
func (d Database) renewPassword(ctx context.Context, cc *pgconn.Config) error {
	switch {
	case len(d.PasswordCommand) > 0:
		password, err := conf.FromCommand(ctx, d.PasswordCommand)
		if err != nil {
			return fault.Repair(fmt.Errorf("source.password_command: %w", err))
		}
		cc.Password = password
	case d.RDSIAM:
		c, err := aws.FromEnvironment(ctx)
		if err != nil {
			return fault.Repair(fmt.Errorf("source.rds_iam: %w", err))
		}
		region, err := aws.Region(cc.Host)
		if err != nil {
			return fault.Repair(fmt.Errorf("source.rds_iam: %w", err))
		}
		cc.Password = aws.RDSToken(c, region, net.JoinHostPort(cc.Host, strconv.Itoa(int(cc.Port))), cc.User, time.Now())
	}
	return nil
}

// tokenGoesTo is what is wrong with the hosts that would receive a token of RDS: a token is for one endpoint, and the client
// sends it as it is.
func tokenGoesTo(cc *pgconn.Config) error {
	encrypted := cc.TLSConfig != nil
	for _, other := range cc.Fallbacks {
		if other.Host != cc.Host || other.Port != cc.Port {
			return errors.New("needs a DSN with one host")
		}
		encrypted = encrypted && other.TLSConfig != nil
	}
	if !encrypted {
		return errors.New("needs sslmode=verify-full (or verify-ca, or require) in source.dsn")
	}
	return nil
}
