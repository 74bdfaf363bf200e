//go:build linux || darwin

package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// initCluster makes a new data directory. As root, initdb runs as a user with a name. A program of that user could leave links in the
// folder that mislead root, so root takes the folder over, and copies what is a file or a folder.
func (s *Server) initCluster(ctx context.Context) error {
	u, err := namedUser()
	if err != nil {
		return err
	}
	made := s.DataDir()
	if u != nil {
		made = s.initDir()
	}
	if err := setOwner(s.Folder(), u); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "bin", "initdb"), "--pgdata="+made,
		"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
	cmd.Env, cmd.Dir, cmd.SysProcAttr = serverEnv(s.Folder()), s.Folder(), &syscall.SysProcAttr{Credential: u}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(out))
	}
	if u == nil {
		return nil
	}
	if err := setOwner(s.Folder(), &syscall.Credential{}); err != nil {
		return err
	}
	left, err := os.ReadDir(s.Folder())
	if err != nil {
		return err
	}
	for _, e := range left {
		if !e.IsDir() && !e.Type().IsRegular() {
			return fmt.Errorf("initdb: %s in %s is neither a file nor a folder", e.Name(), s.Folder())
		}
	}
	if err := CopyDir(made, s.DataDir()); err != nil {
		return err
	}
	return os.RemoveAll(made)
}

// initDir is where initdb makes a data directory for root.
func (s *Server) initDir() string { return filepath.Join(s.Folder(), "initdb") }

// cached is the name of the empty cluster in the cache.
func (s *Server) cached() string { return "cluster-" + filepath.Base(s.bin) }

// copyCluster copies the data directory from the cache. What initCluster makes must be the same for all
// that share the name there.
func (s *Server) copyCluster(ctx context.Context) error {
	cached, err := Cached(s.cached(), func(dir string) error {
		if err := s.initCluster(ctx); err != nil {
			return err
		}
		return errors.Join(CopyDir(s.DataDir(), filepath.Join(dir, "data")), os.RemoveAll(s.DataDir()))
	})
	if err != nil {
		return err
	}
	return CopyDir(filepath.Join(cached, "data"), s.DataDir())
}

// serverEnv is the whole environment of a server. It excludes the PG… variables of the caller.
func serverEnv(home string) []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "LC_ALL=C", "TZ=UTC"}
}

// CopyDir copies a folder, for this program's user only. It leaves out the content of the folders
// in empty, and files that disappear during the copy, because a server may be running. After an
// error, the caller must remove the copy.
func CopyDir(from, to string, empty ...string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(from, path)
		target := filepath.Join(to, rel)
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != from:
			return nil
		case errors.Join(err, relErr) != nil:
			return errors.Join(err, relErr)
		case e.IsDir():
			if err := os.Mkdir(target, 0o700); err != nil || !slices.Contains(empty, rel) {
				return err
			}
			return filepath.SkipDir
		case !e.Type().IsRegular():
			return fmt.Errorf("copy %s: it is neither a file nor a folder", path)
		}
		in, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		return errors.Join(err, out.Close())
	})
}
