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
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// initCluster makes a new data directory at dir, whose parent must exist.
//
// It copies a directory that initdb made once, which takes a tenth of the time of initdb, and gives the copy a new identity.
func initCluster(ctx context.Context, major, bin, dir string, a account) error {
	name := fmt.Sprintf("%s-initdb-%d", filepath.Base(bin), os.Geteuid())
	template, err := Cached(name, func(tmp string) error {
		by := initdbAccount()
		if by.uid != 0 {
			if err := os.Chown(tmp, by.uid, by.gid); err != nil {
				return err
			}
		}
		if err := initdb(ctx, bin, filepath.Join(tmp, "made"), by); err != nil {
			return err
		}
		// Only this program's user may change the finished template.
		if by.uid != 0 {
			if err := os.Chown(tmp, os.Geteuid(), os.Getegid()); err != nil {
				return err
			}
		}
		if err := CopyDir(filepath.Join(tmp, "made"), filepath.Join(tmp, "data")); err != nil {
			return err
		}
		return os.RemoveAll(filepath.Join(tmp, "made"))
	})
	if err != nil {
		return err
	}
	if err := copyDir(filepath.Join(template, "data"), dir, a); err != nil {
		return err
	}
	id := uint64(time.Now().Unix())<<32 | uint64(rand.Uint32())
	if err := setSystemIdentifier(dir, id); err != nil {
		return fmt.Errorf("new system identifier for postgres %s: %w", major, err)
	}
	return nil
}

func initdb(ctx context.Context, bin, dir string, a account) error {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "bin", "initdb"),
		"--pgdata="+dir, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
	cmd.Env = serverEnv(filepath.Dir(dir))
	cmd.Dir = filepath.Dir(dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if a.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// serverEnv is the whole environment of a server. It excludes the PG… variables of the caller.
func serverEnv(home string) []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "LC_ALL=C", "TZ=UTC"}
}

// setSystemIdentifier gives a cleanly stopped data directory a new identifier. The identifier is in pg_control, which has a CRC-32C,
// and in the header of each WAL segment (XLogLongPageHeaderData), which is compared at the start.
func setSystemIdentifier(dir string, id uint64) error {
	path := filepath.Join(dir, "global", "pg_control")
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(b) < 512 {
		return fmt.Errorf("%s has %d bytes", path, len(b))
	}
	old := binary.NativeEndian.Uint64(b)
	// The checksum is the last field of a structure whose length depends on the version. It covers everything before it.
	table := crc32.MakeTable(crc32.Castagnoli)
	at := 0
	for n := 64; n+4 <= 512; n += 4 {
		if crc32.Checksum(b[:n], table) == binary.NativeEndian.Uint32(b[n:]) {
			at = n
			break
		}
	}
	if at == 0 {
		return fmt.Errorf("%s: no checksum found", path)
	}
	binary.NativeEndian.PutUint64(b, id)
	binary.NativeEndian.PutUint32(b[at:], crc32.Checksum(b[:at], table))
	if err := writeInPlace(path, 0, b); err != nil {
		return err
	}

	segments, err := filepath.Glob(filepath.Join(dir, "pg_wal", "????????????????????????"))
	if err != nil {
		return err
	}
	const sysidOffset = 24
	for _, segment := range segments {
		f, err := os.Open(segment)
		if err != nil {
			return err
		}
		var head [sysidOffset + 8]byte
		_, err = io.ReadFull(f, head[:])
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", segment, err)
		}
		if binary.NativeEndian.Uint64(head[sysidOffset:]) != old {
			return fmt.Errorf("%s: no header with the identifier %d", segment, old)
		}
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], id)
		if err := writeInPlace(segment, sysidOffset, b[:]); err != nil {
			return err
		}
	}
	if len(segments) == 0 {
		return errors.New("no WAL segment")
	}
	return nil
}

// writeInPlace changes a file and keeps its owner and mode.
func writeInPlace(path string, at int64, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, at)
	return errors.Join(err, f.Close())
}
