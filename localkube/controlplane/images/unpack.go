package images

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/continuity/fs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

const (
	opaque       = "user.overlay.opaque"
	whiteout     = ".wh."
	whiteoutMeta = ".wh..wh."
	whiteoutAll  = ".wh..wh..opq"
	xattr        = "SCHILY.xattr."
	mostWindow   = 128 << 20
	spaceBytes   = 4 << 20
	spaceEntries = 1000
)

// unpacked says what became of a layer.
type unpacked struct {
	DiffID  string   `json:"diff_id"`  // of the content, without compression
	LeftOut int      `json:"left_out"` // device nodes
	Implied []string `json:"implied"`  // folders that the layer has no entry for, only things in them
}

// layerWriter writes the entries of one layer below a folder. containerd's archive package keeps every path
// inside it; here is what makes the result a layer of overlayfs.
type layerWriter struct {
	root      string
	owners    bool // whether files get the owners that the layer gives
	caps      bool // whether file capabilities can be set
	leftOut   int
	entries   int // since the disk was looked at
	bytes     int64
	named     map[string]bool
	implied   map[string]bool
	whiteouts []string
	opaques   []string
}

// unpack writes a layer's archive, compressed or not, into an empty folder.
func unpack(ctx context.Context, blob, folder string, owners bool) (*unpacked, error) {
	file, err := os.Open(blob)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return unpackStream(ctx, file, folder, owners)
}

func unpackStream(ctx context.Context, in io.Reader, folder string, owners bool) (*unpacked, error) {
	plain, err := decompress(in)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	sum := sha256.New()
	content := bufio.NewReaderSize(io.TeeReader(plain, sum), 1<<20)
	w := &layerWriter{root: folder, owners: owners, caps: canSetCapabilities(folder), named: map[string]bool{}, implied: map[string]bool{}}
	options := []archive.ApplyOpt{archive.WithFilter(w.filter), archive.WithConvertWhiteout(w.note)}
	if !owners {
		options = append(options, archive.WithNoSameOwner())
	}
	if _, err := archive.Apply(ctx, folder, content, options...); err != nil {
		return nil, err
	}
	if err := w.finish(); err != nil {
		return nil, err
	}
	// What follows the end of the archive belongs to its digest.
	if _, err := io.Copy(io.Discard, content); err != nil {
		return nil, err
	}
	var implied []string
	for name := range w.implied {
		if !w.named[name] {
			implied = append(implied, name)
		}
	}
	slices.Sort(implied)
	return &unpacked{"sha256:" + hex.EncodeToString(sum.Sum(nil)), w.leftOut, implied}, nil
}

// decompress reads gzip, zstd or neither, by the first bytes: media types are not always true.
func decompress(in io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(in, 1<<20)
	magic, err := buffered.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(buffered)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18}):
		reader, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(mostWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return reader.IOReadCloser(), nil
	}
	return io.NopCloser(buffered), nil
}

// filter sees each entry first, under its cleaned name.
func (w *layerWriter) filter(header *tar.Header) (bool, error) {
	switch header.Typeflag {
	case tar.TypeChar, tar.TypeBlock:
		w.leftOut++
		return false, nil
	}
	// A file may say that it is larger than any disk: holes are written as zeros.
	w.entries, w.bytes = w.entries+1, w.bytes+header.Size
	if w.bytes >= spaceBytes || w.entries >= spaceEntries {
		if err := checkSpace(w.root, w.bytes); err != nil {
			return false, err
		}
		w.entries, w.bytes = 0, 0
	}
	name := strings.TrimPrefix(path.Clean("/"+header.Name), "/")
	if header.Typeflag == tar.TypeDir {
		w.named[name] = true
	}
	for parent := path.Dir(name); parent != "." && !w.implied[parent]; parent = path.Dir(parent) {
		w.implied[parent] = true
	}
	for key := range header.PAXRecords {
		if attribute, found := strings.CutPrefix(key, xattr); found && !w.allowed(attribute) {
			delete(header.PAXRecords, key)
		}
	}
	return true, nil
}

// allowed keeps a layer from giving overlayfs orders of its own (redirects), and from what cannot be set.
func (w *layerWriter) allowed(attribute string) bool {
	switch {
	case strings.HasPrefix(attribute, "user.overlay."):
		return false
	case attribute == "security.capability":
		return w.caps
	case strings.HasPrefix(attribute, "system.posix_acl_"):
		return w.owners
	}
	return strings.HasPrefix(attribute, "user.")
}

// note keeps whiteouts for the end: they are of lower layers, wherever in the archive they come.
func (w *layerWriter) note(header *tar.Header, _ string) (bool, error) {
	base := path.Base(header.Name)
	switch {
	case base == whiteoutAll:
		w.opaques = append(w.opaques, path.Dir(header.Name))
	case strings.HasPrefix(base, whiteoutMeta):
		// AUFS kept notes of its own under such names.
	case strings.HasPrefix(base, whiteout):
		w.whiteouts = append(w.whiteouts, path.Join(path.Dir(header.Name), base[len(whiteout):]))
	default:
		return true, nil
	}
	return false, nil
}

func (w *layerWriter) finish() error {
	for _, name := range w.opaques {
		folder, err := fs.RootPath(w.root, name)
		if err != nil {
			return err
		}
		if found, err := os.Lstat(folder); err != nil || !found.IsDir() {
			continue
		}
		if err := unix.Lsetxattr(folder, opaque, []byte{'y'}, 0); err != nil {
			return fmt.Errorf("mark %s as opaque: %w", name, err)
		}
	}
	for _, name := range w.whiteouts {
		if err := w.remove(name); err != nil {
			return err
		}
	}
	return nil
}

// remove makes a whiteout, unless the layer has something of that name itself.
func (w *layerWriter) remove(name string) error {
	folder, err := fs.RootPath(w.root, path.Dir(name))
	if err != nil {
		return err
	}
	parent, err := os.Lstat(folder)
	if err != nil || !parent.IsDir() {
		return nil
	}
	place := filepath.Join(folder, path.Base(name))
	found, err := os.Lstat(place)
	if err == nil && found.IsDir() && place != w.root {
		return unix.Lsetxattr(place, opaque, []byte{'y'}, 0)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := unix.Mknod(place, unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("make the whiteout of %s: %w", name, err)
	}
	return setTimes(folder, parent)
}

func setTimes(path string, like os.FileInfo) error {
	moment := unix.NsecToTimespec(like.ModTime().UnixNano())
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{moment, moment}, unix.AT_SYMLINK_NOFOLLOW)
}

// canSetCapabilities tries, since kernels, namespaces and file systems differ in it.
func canSetCapabilities(folder string) bool {
	probe, err := os.CreateTemp(folder, ".probe-*")
	if err != nil {
		return false
	}
	defer os.Remove(probe.Name())
	defer probe.Close()
	none := make([]byte, 20)
	none[3] = 2 // VFS_CAP_REVISION_2
	return unix.Fsetxattr(int(probe.Fd()), "security.capability", none, 0) == nil
}

// inherit gives folders that a layer only implies what they are in the layers below.
func inherit(layer string, names, lower []string, owners bool) error {
	for _, name := range names {
		place, err := fs.RootPath(layer, name)
		if err != nil {
			return err
		}
		if found, err := os.Lstat(place); err != nil || !found.IsDir() || place == layer {
			continue
		}
		for _, below := range slices.Backward(lower) {
			source, err := fs.RootPath(below, name)
			if err != nil {
				return err
			}
			found, err := os.Lstat(source)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
				continue
			}
			if err != nil {
				return err
			}
			if found.IsDir() {
				if err := copyAttributes(source, place, found, owners); err != nil {
					return err
				}
			}
			break
		}
	}
	return nil
}
