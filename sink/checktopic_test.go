package sink

import (
	"strings"
	"testing"
)

func TestJudgementOfATopicsSettings(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"message.timestamp.type", "LogAppendTime", "replaces the time"},
		{"message.timestamp.type", "CreateTime", ""},
		{"message.timestamp.before.max.ms", "3600000", "is 1h0m0s"},
		{"message.timestamp.before.max.ms", "259200000", ""},
		{"message.timestamp.before.max.ms", "9223372036854775807", ""},
		{"message.timestamp.difference.max.ms", "1000", "is 1s"},
		{"unclean.leader.election.enable", "true", "may be lost"},
		{"unclean.leader.election.enable", "false", ""},
	} {
		var k checker
		k.settings("topic t", "t", map[string]string{c.key: c.value})
		switch {
		case c.want == "" && len(k.found) > 0, c.want != "" && len(k.found) != 1:
			t.Errorf("%s=%s: %+v", c.key, c.value, k.found)
		case c.want != "" && (k.found[0].Level != Warn || !strings.Contains(k.found[0].Detail, c.want) || !strings.Contains(k.found[0].Fix, "--topic t --add-config "+strings.Split(c.key, "=")[0])):
			t.Errorf("%s=%s: %+v", c.key, c.value, k.found[0])
		}
	}
}
