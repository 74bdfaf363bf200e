//go:build linux || darwin

package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/jackc/pgx/v5"
)

// CopyData copies the data directory to a new folder, for Config.Data or Restore. The copy has the same system identifier and
// replication slots. The copy of a running server is its state at the end of the copy, like a base backup. No client is disconnected.
//
// A copy for a standby has no replication slots, as with pg_basebackup.
func (s *Server) CopyData(ctx context.Context, to string, forStandby bool) error {
	var empty []string
	if forStandby {
		empty = append(empty, "pg_replslot")
	}
	var err error
	if s.Running() {
		err = s.backup(ctx, to, empty)
	} else {
		err = copyDir(s.data, to, s.account, empty...)
	}
	if err != nil {
		return fmt.Errorf("postgres %s: %w", s.major, err)
	}
	return nil
}

// backup follows the manual, "Making a Base Backup Using the Low Level API".
func (s *Server) backup(ctx context.Context, to string, empty []string) error {
	// Use one session. At its end, the server ends the backup and drops the temporary slot.
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	start, stop := "pg_backup_start('copy', true)", "pg_backup_stop(false)"
	if s.Version() < 15 {
		start, stop = "pg_start_backup('copy', true, false)", "pg_stop_backup(false, false)"
	}
	// The slot keeps the WAL that is written during the copy.
	slot := fmt.Sprintf("walpost_copy_%08x", rand.Uint32())
	for _, sql := range []string{
		"SELECT pg_create_physical_replication_slot('" + slot + "', true, true)",
		"SELECT " + start,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("copy: %s: %w", sql, err)
		}
	}
	if err := copyDir(s.data, to, s.account, append(empty, "pg_wal", "pg_dynshmem")...); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, "SELECT labelfile FROM "+stop).Scan(&label); err != nil {
		return fmt.Errorf("copy: %s: %w", stop, err)
	}
	if err := os.Remove(filepath.Join(to, "pg_wal")); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if err := copyDir(filepath.Join(s.data, "pg_wal"), filepath.Join(to, "pg_wal"), s.account, "archive_status"); err != nil {
		return err
	}
	return s.writeFile(filepath.Join(to, "backup_label"), label)
}

// CopyDir copies a folder with modes and symbolic links. The copy belongs to this program's user.
func CopyDir(from, to string) error { return copyDir(from, to, account{}) }

// copyDir is CopyDir for an account that will own the copy. It leaves out files that disappear during the copy, because the server may
// be running, and the content of the folders in empty. After an error, the caller must remove the copy.
func copyDir(from, to string, owner account, empty ...string) error {
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != from {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case e.IsDir():
			err = os.Mkdir(target, info.Mode().Perm()|0o700)
		case info.Mode()&fs.ModeSymlink != 0:
			var link string
			if link, err = os.Readlink(path); err == nil {
				err = os.Symlink(link, target)
			}
		case info.Mode().IsRegular():
			var gone bool
			if gone, err = copyFile(path, target, info.Mode().Perm()); gone {
				return nil
			}
		default:
			return nil // a socket
		}
		if err != nil {
			return err
		}
		if owner.uid != 0 {
			if err := os.Lchown(target, owner.uid, owner.gid); err != nil {
				return err
			}
		}
		if e.IsDir() && slices.Contains(empty, rel) {
			return filepath.SkipDir
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("copy of %s: %w", from, err)
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) (gone bool, err error) {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return false, err
	}
	_, err = io.Copy(out, in)
	return false, errors.Join(err, out.Close())
}
