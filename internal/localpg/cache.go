//go:build linux || darwin

package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"os/user"
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
// finished folder. Everything in it becomes readable by all users, except what make itself restricted to another owner.
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

// openToAll adds the permission to read, and to enter or run where the owner has it, below dir. It leaves alone what belongs to
// another user, such as a Postgres data directory, which must be closed to others.
func openToAll(dir string) error {
	self := os.Geteuid()
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return nil
		}
		if e.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "PG_VERSION")); err == nil {
				return filepath.SkipDir
			}
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != self {
			return nil
		}
		mode := info.Mode().Perm() | 0o444
		if mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}

// An account is who the servers run as. Zero: as this program.
type account struct {
	name     string
	uid, gid int
}

// serverAccount is this program's own user, or nobody where that is root.
func serverAccount() account {
	if os.Geteuid() != 0 {
		return account{}
	}
	if u, err := user.Lookup("nobody"); err == nil {
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil && uid > 0 {
			return account{"nobody", uid, gid}
		}
	}
	return account{"nobody", 65534, 65534}
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
			return fmt.Errorf("%s is closed to the user %s, as whom Postgres runs because it refuses to run as root", d, a.name)
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
