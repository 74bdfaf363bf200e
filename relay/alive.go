package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
)

// confirmEvery is the time between two Confirms of a session that wants one in each want at least. It leaves
// a margin.
func confirmEvery(want time.Duration) time.Duration {
	return max(want-want/8, time.Millisecond)
}

// alive runs work beside a session, and gives the session's signs of life meanwhile. They confirm
// safe. alive returns when work has returned.
func alive(ctx context.Context, sess Session, safe cdc.Position, work func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	ticker := time.NewTicker(confirmEvery(sess.StatusEvery()))
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

// closeSession ends a session that is of no use any more, if there is one. It takes a second at most, even
// if ctx has ended.
func closeSession(ctx context.Context, sess Session) {
	if sess == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = sess.Close(ctx) // the caller has a better error, or needs none
}
