package conf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	commandTimeout = 30 * time.Second
	maxComplaint   = 300 // bytes of what a command wrote to stderr that an error shows
)

// FromCommand runs a program, and returns what it printed without the end of the last line. Nothing that it printed is part of an
// error, only what it wrote to stderr.
func FromCommand(ctx context.Context, command []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var out, complaint limited
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // the operator chose it
	cmd.Stdout, cmd.Stderr = &out, &complaint
	cmd.WaitDelay = time.Second // a process that it left behind may keep the pipes open
	err := cmd.Run()
	secret := strings.TrimRight(out.String(), "\r\n")
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("no answer: %w", ctx.Err())
	case err == nil && out.Len() > maxSecret:
		err = fmt.Errorf("printed more than %d bytes", maxSecret)
	case err == nil && secret == "":
		err = errors.New("printed nothing")
	case err == nil:
		return secret, nil
	}
	var start *exec.Error
	if errors.As(err, &start) { // it has the name
		return "", err
	}
	text := strings.Join(strings.Fields(complaint.String()), " ")
	if len(text) > maxComplaint {
		text = "… " + strings.ToValidUTF8(text[len(text)-maxComplaint:], "")
	}
	if text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return "", fmt.Errorf("%s: %w", filepath.Base(command[0]), err)
}

// limited keeps the beginning of what is written.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := maxSecret + 1 - l.Len(); room > 0 {
		_, _ = l.Buffer.Write(p[:min(len(p), room)]) // it returns no error
	}
	return len(p), nil
}
