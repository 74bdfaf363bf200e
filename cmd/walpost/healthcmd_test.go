package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/command/statuspage"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/relay"
)

// The health check of a container must not restart a relay that waits, is halted, or stands by.
func TestHealthAsksTheRelay(t *testing.T) {
	all := [][]string{nil, {"--ready"}, {"--ready", "--standby-ok"}}
	for _, c := range []struct {
		name   string
		state  relay.State
		ready  bool
		turned time.Time
		codes  [3]int // of all
		says   string // with --ready; "" does not matter
	}{
		{"streams", relay.Streaming, true, time.Now(), [3]int{exitOK, exitOK, exitOK}, "ok\n"},
		{"waits for Kafka", relay.Stalled, false, time.Now(), [3]int{exitOK, exitFailed, exitFailed}, "walpost: stalled: the reason\n"},
		{"is halted", relay.Halted, false, time.Now(), [3]int{exitOK, exitFailed, exitFailed}, "walpost: halted: the reason\n"},
		{"stands by", relay.Standby, false, time.Now(), [3]int{exitOK, exitFailed, exitOK}, "walpost: standby: the reason\n"},
		{"hangs", relay.Streaming, true, time.Now().Add(-time.Hour), [3]int{exitFailed, exitFailed, exitFailed}, ""},
	} {
		var s walpost.Status
		s.State, s.Ready, s.Reason, s.Turned = c.state, c.ready, "the reason", c.turned
		addr, stop, err := statuspage.New(statuspage.Config{Listen: "127.0.0.1:0"}, statuspage.Build{}).Serve(&still{s}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for i, args := range all {
			code, out := command(t, append([]string{"health", "--http", addr}, args...)...)
			if code != c.codes[i] || i == 1 && c.says != "" && out != c.says {
				t.Errorf("a relay that %s, health %v: exit %d, %q; must be %d", c.name, args, code, out, c.codes[i])
			}
		}
		stop()
	}
}

// The commands that ask a relay log in as its configuration says, and talk to nobody who shows another certificate.
func TestHealthLogsInAndKnowsTheCertificate(t *testing.T) {
	_, cert, key := testenv.NewAuthority(t).Pair("http")
	_, other, _ := testenv.NewAuthority(t).Pair("http")
	var s walpost.Status
	s.State, s.Ready, s.Turned = relay.Streaming, true, time.Now()
	addr, stop, err := statuspage.New(statuspage.Config{
		Listen: "127.0.0.1:0", TLS: &statuspage.TLS{CertFile: cert, KeyFile: key}, Username: "ops", Password: "right",
	}, statuspage.Build{}).Serve(&still{s}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, c := range []struct{ cert, more, says string }{
		{cert, "username: ops, password: right", "ok\n"},
		{cert, "username: ops, password: wrong", "walpost: http.username and its password are required\n"},
		{other, "username: ops, password: right", "walpost: no relay answers at " + addr + ": its certificate is not the one in http.tls.cert_file\n"},
		{"", "username: ops, password: right", "walpost: Client sent an HTTP request to an HTTPS server.\n"},
	} {
		file := filepath.Join(t.TempDir(), "walpost.yaml")
		text := "http: {listen: '" + addr + "', " + c.more
		if c.cert != "" {
			text += ", tls: {cert_file: " + c.cert + ", key_file: " + strings.TrimSuffix(c.cert, "pem") + "key}"
		}
		if err := os.WriteFile(file, []byte(text+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, out := command(t, "health", "--ready", "--config", file); out != c.says {
			t.Errorf("%s, %s: %q, must be %q", c.cert, c.more, out, c.says)
		}
	}
}

func TestHealthWithoutARelay(t *testing.T) {
	const addr = "127.0.0.1:1" // where nobody listens
	// A configuration that run would refuse: only http.listen matters here.
	config := filepath.Join(t.TempDir(), "walpost.yaml")
	if err := os.WriteFile(config, []byte("http: {listen: '"+addr+"'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--config", config}, exitFailed, "no relay answers at " + addr + ": connection refused"},
		{[]string{"--http", "off"}, exitUsage, `http.listen is "off", so the relay has no address to ask`},
		{[]string{"--http", "nowhere"}, exitUsage, "--http"},
		{[]string{"--standby-ok"}, exitUsage, "--standby-ok needs --ready"},
	} {
		if code, out := command(t, append([]string{"health"}, c.args...)...); code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("health %v: exit %d, %q; must be %d, %q", c.args, code, out, c.code, c.says)
		}
	}
}
