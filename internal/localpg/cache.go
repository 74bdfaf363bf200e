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

// CacheDir returns the folder that keeps what was downloaded or made once: $WALPOST_CACHE, else the user's cache folder. As root
// it is /var/cache/walpost, because Postgres refuses to run as root and the user it runs as could not enter root's home.
func CacheDir() (string, error) {
	if dir := os.Getenv("WALPOST_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Geteuid() == 0 {
		return "/var/cache/walpost", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache folder (WALPOST_CACHE names another): %w", err)
	}
	return filepath.Join(dir, "walpost"), nil
}

// Cached returns the folder called name in the cache, after make has filled it if it was not there. Programs that ask at the
// same time wait for the one that makes it; a make that fails or is killed leaves nothing that could be taken for the
// finished folder. Everything in it becomes readable by all users.
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
		return "", fmt.Errorf("cache (WALPOST_CACHE names another place): %w", err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return "", fmt.Errorf("cache (WALPOST_CACHE names another place): %w", err)
	}
	defer lock.Close()
	if err := flock(lock); err != nil {
		return "", fmt.Errorf("cache: lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	// We hold the lock: an unfinished folder belongs to nobody.
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

// mkdirOpen is MkdirAll whose new folders are open to all users, whatever the umask.
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

// openToAll adds the permission to read, and to enter or run where the owner has it, below dir; except in a Postgres data directory,
// which the server wants closed to others.
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

// An account is who a server runs as. Zero: as this program.
type account struct{ uid, gid int }

// serverAccount is this program's own user or, where that is root, a user id that nobody else has: the server's folder belongs to it
// and root writes there, so that any other program under the same id could lead root astray. The range is the one in which systemd
// finds ids for the same purpose; higher ones do not exist in many containers.
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

// initdbAccount is one that the user database knows: initdb insists on a name.
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

// mayEnter says whether the account can reach dir: it or everybody must have the right to enter it and each folder above.
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

// tempBase returns a folder for temporary folders that the account can reach: the wanted one or, as nothing depends on the place,
// another.
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
