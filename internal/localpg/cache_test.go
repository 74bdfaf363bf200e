//go:build linux || darwin

package localpg

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestManyWhoWantTheSameGetWhatOneMade(t *testing.T) {
	t.Setenv("WALPOST_CACHE", t.TempDir())
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			dir, err := Cached("thing", func(dir string) error {
				made.Add(1)
				time.Sleep(50 * time.Millisecond) // a chance for those who do not wait
				return os.WriteFile(filepath.Join(dir, "file"), []byte("whole"), 0o600)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if b, err := os.ReadFile(filepath.Join(dir, "file")); string(b) != "whole" {
				t.Errorf("file: %q, %v", b, err)
			}
		})
	}
	wg.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("made %d times, want once", n)
	}
}

func TestWhatWasNotFinishedIsMadeAgain(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("WALPOST_CACHE", cache)
	broken := errors.New("broken")
	if _, err := Cached("thing", func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "half"), nil, 0o600); err != nil {
			t.Error(err)
		}
		return broken
	}); !errors.Is(err, broken) {
		t.Fatalf("got %v, want %v", err, broken)
	}
	// What a killed program leaves.
	if err := os.MkdirAll(filepath.Join(cache, "thing.part", "half"), 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := Cached("thing", func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("in the new folder: %v, %v", left, err)
	}
}

// The server's account is another one than root, and CI often has a strict umask.
func TestTheCacheIsOpenToTheServersAccountWhateverTheUmask(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	t.Setenv("WALPOST_CACHE", filepath.Join(t.TempDir(), "a", "b"))
	dir, err := Cached("thing", func(dir string) error {
		if err := os.Mkdir(filepath.Join(dir, "bin"), 0o777); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "bin", "run"), nil, 0o777)
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{"../..": 0o755, "..": 0o755, "": 0o755, "bin": 0o755, "bin/run": 0o755} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("mode of %s: %o, want %o", path, got, want)
		}
	}
}

func TestAFolderThatTheServersAccountCannotEnterIsRefusedWithItsName(t *testing.T) {
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.MkdirAll(filepath.Join(closed, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	err := closedToOthers(filepath.Join(closed, "inner"))
	if err == nil || !strings.Contains(err.Error(), closed) {
		t.Errorf("got %v, want that %s is closed", err, closed)
	}
	if err := closedToOthers(os.TempDir()); err != nil {
		t.Errorf("an open folder: %v", err)
	}
}
