//go:build linux || darwin

package localpg

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// initCluster makes a new data directory. It copies a directory that initdb made once, which takes
// a tenth of the time of initdb, and gives the copy a new identity.
func (s *Server) initCluster(ctx context.Context, dir string) error {
	template, err := Cached(fmt.Sprintf("%s-initdb-%d", filepath.Base(s.bin), os.Geteuid()), func(tmp string) error {
		u, err := namedUser()
		if err != nil {
			return err
		}
		if err := give(tmp, u); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "bin", "initdb"), "--pgdata="+filepath.Join(tmp, "data"),
			"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
		cmd.Env, cmd.Dir, cmd.SysProcAttr = serverEnv(tmp), tmp, &syscall.SysProcAttr{Credential: u}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(out))
		}
		if u == nil {
			return nil
		}
		return give(tmp, &syscall.Credential{}) // only root may change the template
	})
	if err != nil {
		return err
	}
	if err := CopyDir(filepath.Join(template, "data"), dir); err != nil {
		return err
	}
	if err := renew(dir); err != nil {
		return fmt.Errorf("new system identifier: %w", err)
	}
	return nil
}

// serverEnv is the whole environment of a server. It excludes the PG… variables of the caller.
func serverEnv(home string) []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "LC_ALL=C", "TZ=UTC"}
}

// renew gives a new data directory another system identifier. The identifier is in pg_control, and
// in the header of the one WAL segment (XLogLongPageHeaderData), which the server compares at its
// start.
func renew(dir string) error {
	id := binary.NativeEndian.AppendUint64(nil, uint64(time.Now().Unix())<<32|uint64(rand.Uint32()))
	path := filepath.Join(dir, "global", "pg_control")
	control, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	// A CRC-32C is the last field of a structure whose length depends on the version. It covers
	// everything before it.
	table := crc32.MakeTable(crc32.Castagnoli)
	at := 64
	for ; crc32.Checksum(control[:at], table) != binary.NativeEndian.Uint32(control[at:]); at += 4 {
		if at > 504 || len(control) < 512 {
			return fmt.Errorf("%s: no checksum found in %d bytes", path, len(control))
		}
	}
	old := slices.Clone(control[:8])
	copy(control, id)
	binary.NativeEndian.PutUint32(control[at:], crc32.Checksum(control[:at], table))
	if err := os.WriteFile(path, control, 0); err != nil { // the file exists and keeps its mode
		return err
	}

	const offset = 24
	segment, err := os.OpenFile(filepath.Join(dir, "pg_wal", "000000010000000000000001"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer segment.Close()
	head := make([]byte, 8)
	if _, err := segment.ReadAt(head, offset); err != nil {
		return err
	}
	if !bytes.Equal(head, old) {
		return fmt.Errorf("%s does not have the identifier of pg_control", segment.Name())
	}
	_, err = segment.WriteAt(id, offset)
	return err
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
