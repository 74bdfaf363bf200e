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
	"syscall"
)

// Postgres refuses to run as root. If this program runs as root, the server has another user. A nil
// credential is this program's user.

// unusedUser returns a user id that nobody has: root writes to the server's folder, so a program
// with the same id could mislead root. The range is the one that systemd uses for this purpose.
// Many containers have no higher ids.
func unusedUser() *syscall.Credential {
	const first, last = 61184, 65519
	for {
		id := first + rand.IntN(last-first+1)
		if _, err := user.LookupId(strconv.Itoa(id)); err != nil {
			return &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}
		}
	}
}

// namedUser returns a user with a name, which initdb needs.
func namedUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, fmt.Errorf("initdb needs a user that is not root: %w", err)
	}
	uid, err1 := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(nobody.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(err1, err2)
}

// setOwner makes a user the owner of a folder and its content. The children of a killed server may
// still remove files.
func setOwner(dir string, to *syscall.Credential) error {
	if to == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(path, int(to.Uid), int(to.Gid))
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// closedToOthers returns an error if other users may not enter dir or a folder above it.
func closedToOthers(dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode()&0o001 == 0 {
			return fmt.Errorf("%s is closed to other users, and Postgres refuses to run as root", dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}
