package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// An outcome is what one run showed.
type outcome struct {
	scenario  *scenario
	seed      uint64
	version   string // of Postgres
	once      bool
	verdict   Verdict
	recovery  time.Duration
	rss       int64
	leftOut   string   // why this machine cannot run it
	unreached []string // without these the run does not count
	failures  []string
	took      time.Duration
}

// ok reports whether the run counts and kept every promise.
func (o *outcome) ok() bool { return o.kept() && len(o.unreached) == 0 }

func (o *outcome) kept() bool { return len(o.verdict.Broken) == 0 && len(o.failures) == 0 }

// counts is false for a run that kept its promises without having reached what it is about.
func (o *outcome) counts() bool { return !o.kept() || len(o.unreached) == 0 }

func (o *outcome) guarantee() string { return guarantee(o.once) }

func (o *outcome) String() string {
	s := fmt.Sprintf("%s seed %d, %s, Postgres %s: ", o.scenario.name, o.seed, o.guarantee(), o.version)
	switch {
	case o.leftOut != "":
		return s + "LEFT OUT: " + o.leftOut
	case len(o.failures) > 0:
		s += "FAILED: " + strings.Join(o.failures, "\n  ")
	case len(o.verdict.Broken) > 0:
		s += "BROKEN: " + o.verdict.String()
	case len(o.unreached) > 0:
		s += "does not count, because it did not reach " + strings.Join(o.unreached, ", ")
	default:
		s += o.verdict.String()
	}
	return s + fmt.Sprintf("; recovery %s, %d MB, took %s", o.recovery.Round(10*time.Millisecond), o.rss>>20, o.took.Round(time.Second))
}

// once runs a scenario with a seed. Failures of t itself are not in the outcome.
func once(t testing.TB, s *servers, sc *scenario, o options, seed uint64) (out outcome) {
	version := []string{"15", "18"}[seed%2]
	r := newRun(t, s, o, seed, version)
	out = outcome{scenario: sc, seed: seed, version: version, once: o.exactlyOnce}
	t.Cleanup(r.heal)
	if sc.do(r); r.leftOut != "" {
		out.leftOut = r.leftOut
		return out
	}
	r.finish()
	out.verdict, out.recovery, out.took = r.verdict, r.recovery, time.Since(r.began)
	for _, p := range r.relays {
		out.rss = max(out.rss, p.peakMemory())
	}
	for _, n := range sc.needs {
		if !r.has(n) && (r.walpost() || n == insideTransaction) {
			out.unreached = append(out.unreached, n)
		}
	}
	return out
}
