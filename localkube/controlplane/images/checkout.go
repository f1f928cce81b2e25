package images

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/continuity/fs"
	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"
)

// checkout merges layers, the lowest first, into an empty folder, as overlayfs would show them. Content is
// shared with the store where the file system can (reflinks), and copied elsewhere.
func checkout(layers []string, folder string, owners bool) (int64, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return 0, err
	}
	if len(entries) > 0 {
		return 0, fmt.Errorf("%s is not empty", folder)
	}
	var written int64
	for _, layer := range layers {
		merging := &merge{from: layer, to: folder, owners: owners, linked: map[uint64]string{}}
		if err := merging.folder("."); err != nil {
			return written, err
		}
		written += merging.written
	}
	return written, nil
}

type merge struct {
	from, to string
	owners   bool
	linked   map[uint64]string // hard links by inode
	written  int64
}

// folder merges one directory; its attributes come last, since writing into it changes its times.
func (m *merge) folder(name string) error {
	source, target := filepath.Join(m.from, name), filepath.Join(m.to, name)
	info, err := os.Lstat(source)
	if err != nil {
		return err
	}
	if value, err := sysx.LGetxattr(source, opaque); err == nil && string(value) == "y" {
		if err := empty(target); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := m.entry(filepath.Join(name, entry.Name())); err != nil {
			return err
		}
	}
	return copyAttributes(source, target, info, m.owners)
}

func (m *merge) entry(name string) error {
	source, target := filepath.Join(m.from, name), filepath.Join(m.to, name)
	info, err := os.Lstat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		// The target's own type decides: a link there is replaced, never followed.
		if old, err := os.Lstat(target); err == nil && !old.IsDir() {
			if err := os.Remove(target); err != nil {
				return err
			}
		}
		if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		return m.folder(name)
	}
	if _, err := removeTree(target); err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	if info.Mode()&os.ModeCharDevice != 0 && stat.Rdev == 0 {
		return nil // a whiteout
	}
	if stat.Nlink > 1 {
		if earlier, found := m.linked[stat.Ino]; found {
			return os.Link(filepath.Join(m.to, earlier), target)
		}
		m.linked[stat.Ino] = name
	}
	switch {
	case info.Mode().IsRegular():
		err = m.file(source, target, info.Size())
	case info.Mode()&os.ModeSymlink != 0:
		var to string
		if to, err = os.Readlink(source); err == nil {
			err = os.Symlink(to, target)
		}
	case info.Mode()&os.ModeNamedPipe != 0:
		err = unix.Mkfifo(target, 0o600)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return copyAttributes(source, target, info, m.owners)
}

func (m *merge) file(source, target string, size int64) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil {
		if err = checkSpace(m.to, size); err == nil {
			_, err = io.Copy(out, in) // copy_file_range
			m.written += size
		}
	}
	return errors.Join(err, out.Close())
}

// copyAttributes gives a file the owner, mode, extended attributes and times of another, except those by which
// overlayfs marks it.
func copyAttributes(source, target string, info os.FileInfo, owners bool) error {
	stat := info.Sys().(*syscall.Stat_t)
	if owners {
		if err := os.Lchown(target, int(stat.Uid), int(stat.Gid)); err != nil {
			return err
		}
	}
	if info.Mode()&os.ModeSymlink == 0 {
		if err := unix.Chmod(target, stat.Mode&0o7777); err != nil {
			return err
		}
		names, err := sysx.LListxattr(source)
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			return err
		}
		for _, name := range names {
			if strings.HasPrefix(name, "user.overlay.") || strings.HasPrefix(name, "trusted.") || strings.HasPrefix(name, "security.selinux") {
				continue
			}
			value, err := sysx.LGetxattr(source, name)
			if err != nil {
				continue
			}
			if err := unix.Lsetxattr(target, name, value, 0); err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
				return fmt.Errorf("set %s of %s: %w", name, target, err)
			}
		}
	}
	moments := []unix.Timespec{
		unix.NsecToTimespec(syscall.TimespecToNsec(fs.StatAtime(stat))), unix.NsecToTimespec(syscall.TimespecToNsec(fs.StatMtime(stat))),
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, target, moments, unix.AT_SYMLINK_NOFOLLOW)
}

func empty(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if _, err := removeTree(filepath.Join(folder, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// removeTree removes a file or a folder, also one whose owner may not write to it, and counts its bytes on disk.
func removeTree(path string) (int64, error) {
	var freed int64
	err := filepath.WalkDir(path, func(each string, entry os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if errors.Is(err, os.ErrPermission) && entry != nil && entry.IsDir() {
			return nil // counted as nothing
		}
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return nil
		}
		if stat := info.Sys().(*syscall.Stat_t); stat.Nlink == 1 {
			freed += stat.Blocks * 512
		}
		if entry.IsDir() && info.Mode().Perm()&0o700 != 0o700 {
			os.Chmod(each, 0o700)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return freed, os.RemoveAll(path)
}
