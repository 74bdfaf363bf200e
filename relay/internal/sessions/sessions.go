// Package sessions deals with a session whose events nobody reads: one that has just begun, and one
// that is of no use any more.
package sessions

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
)

// A Session is what the package needs of relay.Session.
type Session interface {
	Confirm(ctx context.Context, safe cdc.Position) error
	StatusEvery() time.Duration
	Close(ctx context.Context) error
}

// Every is the time between two Confirms of a session that wants one in each want at least. It leaves
// a margin.
func Every(want time.Duration) time.Duration {
	return max(want-want/8, time.Millisecond)
}

// Alive runs work beside a session, and gives the session's signs of life meanwhile. They confirm
// safe. Alive returns when work has returned.
func Alive(ctx context.Context, sess Session, safe cdc.Position, work func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	ticker := time.NewTicker(Every(sess.StatusEvery()))
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-ticker.C:
			if err := sess.Confirm(ctx, safe); err != nil {
				cancel()
				<-done
				return fmt.Errorf("send a status update: %w", err)
			}
		}
	}
}

// Close ends a session that is of no use any more, if there is one. It takes a second at most, even
// if ctx has ended.
func Close(ctx context.Context, sess Session) {
	if sess == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = sess.Close(ctx) // the caller has a better error, or needs none
}
