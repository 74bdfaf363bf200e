package pg

import (
	"strings"
	"testing"
)

func TestWithoutPasswordLeavesPasswordsOut(t *testing.T) {
	for _, c := range []struct {
		dsn, role, want string
		password        bool
	}{
		{"postgres://u:p$x@h:1,i:2/d?sslmode=require", "", "postgres://u@h:1,i:2/d?sslmode=require", true},
		{"postgres://h/d", "w", "postgres://w@h/d", false},
		{"postgresql://h/d?user=u&password=p&sslmode=require", "", "postgresql://u@h/d?sslmode=require", true},
		{"postgres:///d?host=/run&password=p", "", "postgres:///d?host=%2Frun", true},
		{"host=h user=u password=p dbname=d", "", "user=u host=h dbname=d", true},
		{`password = 'a \' b' host=h user='u v'`, "", "user='u v' host=h", true},
		{"host=h user=u dbname=d", "it's", `user='it\'s' host=h dbname=d`, false},
		{"host=h dbname=d", "", "host=h dbname=d", false},
		{`host=h password=se\ cret dbname=d`, "", "host=h dbname=d", true},
		{`host=h options='-c user=x password=y' user=u`, "", `user=u host=h options='-c user=x password=y'`, false},
	} {
		got, password, err := WithoutPassword(c.dsn, c.role)
		if got = strings.Join(strings.Fields(got), " "); err != nil || got != c.want || password != c.password {
			t.Errorf("%s: %s %v %v, want %s", c.dsn, got, password, err, c.want)
		}
	}
}
