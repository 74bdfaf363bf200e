//go:build linux

// Package release tests the artefacts of a release: the packages, the container image and the
// programs. bash .ci/release builds them, and runs these tests.
package release

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// dist returns the folder of the artefacts.
func dist(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("WALPOST_DIST")
	if dir == "" {
		t.Skip("WALPOST_DIST is not set: bash .ci/release builds a release, and tests it")
	}
	return dir
}

// one returns the only file in the folder that fits the pattern.
func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dist(t), pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v: want one file", pattern, found, err)
	}
	return found[0]
}

// out runs a program that must succeed, and returns what it printed.
func out(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	text, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, text)
	}
	return string(text)
}

var version = regexp.MustCompile(`0\.0\.0-snapshot-[0-9a-f]+`)

// TestTheReleaseIsComplete: each platform has its archive and list of parts, and each sum is right.
func TestTheReleaseIsComplete(t *testing.T) {
	sums, err := os.ReadFile(one(t, "checksums.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		data, err := os.ReadFile(filepath.Join(dist(t), name))
		if err != nil {
			t.Fatal(err)
		}
		if is := sha256.Sum256(data); hex.EncodeToString(is[:]) != sum {
			t.Errorf("the sum of %s is wrong", name)
		}
		got = append(got, version.ReplaceAllString(strings.ReplaceAll(name, "~", "-"), "V"))
	}
	var want []string
	for _, arch := range []string{"amd64", "arm64"} {
		for _, os := range []string{"linux", "darwin", "windows"} {
			ending := "tar.gz"
			if os == "windows" {
				ending = "zip"
			}
			want = append(want, fmt.Sprintf("walpost_V_%s_%s.%s", os, arch, ending), fmt.Sprintf("walpost_V_%s_%s.cdx.json", os, arch))
		}
		for _, ending := range []string{"deb", "rpm"} {
			want = append(want, fmt.Sprintf("walpost_V_linux_%s.%s", arch, ending))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the artefacts are\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}

	var parts struct {
		Components []struct{ Name, Version string }
	}
	data, err := os.ReadFile(one(t, "walpost_*_linux_amd64.cdx.json"))
	if err == nil {
		err = json.Unmarshal(data, &parts)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(parts.Components, func(c struct{ Name, Version string }) bool {
		return c.Name == "github.com/twmb/franz-go" && strings.HasPrefix(c.Version, "v1.")
	}) {
		t.Errorf("the list of parts lacks the Kafka client: %+v", parts.Components)
	}
}

// TestTheProgramCanBeBuiltAgain: a clone in another folder gives the same bytes.
func TestTheProgramCanBeBuiltAgain(t *testing.T) {
	released := one(t, "walpost_linux_amd64_v1/walpost")
	clone := filepath.Join(t.TempDir(), "elsewhere")
	said := out(t, released, "version")
	commit := regexp.MustCompile(`(?m)^commit ([0-9a-f]{40}) of 20`).FindStringSubmatch(said)
	if commit == nil {
		t.Fatalf("the version lacks a commit with its date: %s", said)
	}
	out(t, "git", "clone", "--quiet", "../..", clone)
	out(t, "git", "-C", clone, "checkout", "--quiet", commit[1])
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=true", "-ldflags", "-s -w -X main.version=v"+version.FindString(said), "-o", "walpost", "./cmd/walpost")
	build.Dir, build.Env = clone, append(os.Environ(), "CGO_ENABLED=0", "GOAMD64=v1")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	first, err1 := os.ReadFile(released)
	second, err2 := os.ReadFile(filepath.Join(clone, "walpost"))
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if !bytes.Equal(first, second) {
		t.Errorf("the second program differs (%d and %d bytes); %s", len(first), len(second), out(t, filepath.Join(clone, "walpost"), "version"))
	}
}

// relayed inserts an event, and returns its value when it has arrived in the topic.
func relayed(t *testing.T, dsn, topic string, brokers []string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ($1, '7', 'Made', '{"n": 1}')`, topic); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("outbox.event."+topic), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for {
		fetches := client.PollRecords(ctx, 1)
		if r := fetches.Records(); len(r) > 0 {
			return string(r[0].Value)
		}
		if err := ctx.Err(); err != nil {
			t.Fatalf("no event arrived: %v, %v", err, fetches.Errors())
		}
	}
}
