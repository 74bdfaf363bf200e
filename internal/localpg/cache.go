//go:build linux || darwin

package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// CacheDir returns the folder for downloads: $WALPOST_CACHE, or the user's cache
// folder. For root it is /var/cache/walpost, because Postgres must run as another user, who cannot
// enter root's home.
func CacheDir() (string, error) {
	if dir := os.Getenv("WALPOST_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Geteuid() == 0 {
		return "/var/cache/walpost", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache folder (WALPOST_CACHE sets another): %w", err)
	}
	return filepath.Join(dir, "walpost"), nil
}

// Cached returns the folder called name in the cache. If it does not exist, make fills it, and
// other programs wait. If make fails or is killed, no folder with this name remains. All users may
// read the content.
func Cached(name string, make func(dir string) error) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := mkdirOpen(filepath.Dir(dir)); err != nil {
		return "", fmt.Errorf("cache (WALPOST_CACHE sets another folder): %w", err)
	}
	held, err := lock(dir)
	if err != nil {
		return "", err
	}
	defer held.Close()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	// Because of the lock, no other program uses an unfinished folder.
	tmp := dir + ".part"
	rename := func(tmp string) error { return os.Rename(tmp, dir) }
	for _, step := range []func(dir string) error{os.RemoveAll, mkdirOpen, make, openToAll, syncAll, rename} {
		if err := step(tmp); err != nil {
			return "", errors.Join(err, os.RemoveAll(tmp))
		}
	}
	return dir, nil
}

// forget removes what the cache has under a name, if it can. A program that copies it meanwhile gets a
// part of it.
func forget(name string) {
	cache, err := CacheDir()
	if err != nil {
		return
	}
	dir := filepath.Join(cache, name)
	held, err := lock(dir)
	if err != nil {
		return
	}
	defer held.Close()
	if os.RemoveAll(dir+".part") == nil && os.Rename(dir, dir+".part") == nil {
		_ = os.RemoveAll(dir + ".part")
	}
}

// lock excludes others from making dir until the file is closed.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, fmt.Errorf("cache (WALPOST_CACHE sets another folder): %w", err)
	}
	if err := flock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("cache: lock %s: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// mkdirOpen is MkdirAll, but all users may read the new folders, whatever the umask.
func mkdirOpen(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := mkdirOpen(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(dir, 0o755)
}

// syncAll writes dir to the disk. A crash of the machine could otherwise keep the rename and lose the content.
func syncAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() && !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

// openToAll lets all users read dir, and enter or run what the owner may.
func openToAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
