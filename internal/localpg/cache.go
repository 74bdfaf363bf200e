//go:build linux || darwin

package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// CacheDir returns the folder for downloads and templates: $WALPOST_CACHE, or the user's cache folder. For root it is
// /var/cache/walpost, because Postgres must run as another user, who cannot enter root's home.
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

// Cached returns the folder called name in the cache. If it does not exist, make fills it, and other programs wait. If make fails or
// is killed, no folder with this name remains. All users may read the content.
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
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return "", fmt.Errorf("cache (WALPOST_CACHE sets another folder): %w", err)
	}
	defer lock.Close()
	if err := flock(lock); err != nil {
		return "", fmt.Errorf("cache: lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	// Because of the lock, no other program uses an unfinished folder.
	tmp := dir + ".part"
	if err := os.RemoveAll(tmp); err != nil {
		return "", fmt.Errorf("cache: %w", err)
	}
	if err := mkdirOpen(tmp); err != nil {
		return "", fmt.Errorf("cache: %w", err)
	}
	if err := make(tmp); err != nil {
		return "", errors.Join(err, os.RemoveAll(tmp))
	}
	if err := openToAll(tmp); err != nil {
		return "", errors.Join(fmt.Errorf("cache: %w", err), os.RemoveAll(tmp))
	}
	if err := os.Rename(tmp, dir); err != nil {
		return "", errors.Join(fmt.Errorf("cache: %w", err), os.RemoveAll(tmp))
	}
	return dir, nil
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

// openToAll lets all users read dir, and enter or run what the owner may. It leaves out Postgres data directories, which the server
// requires to be closed to others.
func openToAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		if e.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "PG_VERSION")); err == nil {
				return filepath.SkipDir
			}
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

// An account is the user of a server. The zero account is the user of this program.
type account struct{ uid, gid int }

// serverAccount is this program's user. For root it is an unused user id: root writes to the server's folder, so a program with the
// same id could mislead root. The range is the one that systemd uses for this purpose. Many containers have no higher ids.
func serverAccount() account {
	if os.Geteuid() != 0 {
		return account{}
	}
	const first, last = 61184, 65519
	for {
		id := first + rand.IntN(last-first+1)
		if _, err := user.LookupId(strconv.Itoa(id)); err != nil {
			return account{id, id}
		}
	}
}

// initdbAccount is an account with a name, which initdb needs.
func initdbAccount() account {
	if os.Geteuid() != 0 {
		return account{}
	}
	if u, err := user.Lookup("nobody"); err == nil {
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil && uid > 0 {
			return account{uid, gid}
		}
	}
	return account{65534, 65534}
}

// mayEnter returns an error if the account may not enter dir or a folder above it.
func (a account) mayEnter(dir string) error {
	if a.uid == 0 {
		return nil
	}
	for d := dir; ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		owns := ok && int(st.Uid) == a.uid && info.Mode()&0o100 != 0
		if !owns && info.Mode()&0o001 == 0 {
			return fmt.Errorf("%s is closed to other users, and Postgres refuses to run as root", d)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// tempBase returns a folder for temporary folders that the account may enter: the wanted one if possible.
func tempBase(a account, wanted string) (string, error) {
	var tried []string
	for _, dir := range []string{wanted, os.TempDir(), "/tmp", "/var/tmp"} {
		if dir == "" {
			continue
		}
		err := a.mayEnter(dir)
		if err == nil {
			return dir, nil
		}
		tried = append(tried, err.Error())
	}
	return "", fmt.Errorf("no folder for the server's data: %s", strings.Join(tried, "; "))
}
