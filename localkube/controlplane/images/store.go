// Package images is the store of container images on a machine: it pulls, loads, saves and removes them.
//
// One store serves all clusters of a user; several processes may work on it at once. Its files:
//
//	oci-layout, index.json, blobs/   an OCI image layout: manifests, configs, compressed layers
//	layers/N/                        a layer, unpacked for overlayfs: a whiteout is a character device 0:0,
//	                                 an opaque directory has the attribute user.overlay.opaque=y
//	layers/N.left-out                how many device nodes were left out of it, if any
//	diff-ids/sha256-HEX              symbolic link to a whole layer, by the digest of its content
//	images/HEX.json                  the record of an image, by the digest of its config; its modification
//	                                 time is when it was last used
//	names/REFERENCE                  symbolic link to a record, percent-encoded; by tag and by digest
//	users/HEX.ANYTHING               symbolic link to a path; as long as that exists, the image is in use
//	work/                            what is half done: blobs that a later pull continues, and locks
//	lock                             held shared while something is added, exclusively to remove
//
// Files appear by rename, whole or not at all. What a killed process leaves is continued or pruned.
package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

const lockWait = 30 * time.Second

// Record is what is known of an image.
type Record struct {
	ID           string          `json:"id"` // digest of the config
	Names        []string        `json:"names"`
	Digests      []string        `json:"digests"` // repository@digest, as it was pulled
	Size         int64           `json:"size"`    // bytes of the compressed layers
	Pulled       int64           `json:"pulled"`  // Unix time in seconds
	OS           string          `json:"os"`
	Architecture string          `json:"architecture"`
	Variant      string          `json:"variant,omitempty"`
	Config       json.RawMessage `json:"config"` // the "config" of the OCI image config
	Layers       []string        `json:"layers"` // names below layers/, the lowest first
	LeftOut      int             `json:"left_out,omitempty"`
	Manifest     string          `json:"manifest"` // digest of this platform's manifest
	MediaType    string          `json:"media_type"`
}

// store is an open store.
type store struct{ root string }

func openStore(root string) (*store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	s := &store{root}
	for _, folder := range []string{"", "blobs", "blobs/sha256", "layers", "diff-ids", "images", "names", "users", "work"} {
		if err := os.MkdirAll(s.path(folder), 0o700); err != nil {
			return nil, err
		}
	}
	for name, content := range map[string]string{
		"oci-layout": `{"imageLayoutVersion":"1.0.0"}`,
		"index.json": `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`,
	} {
		if _, err := os.Stat(s.path(name)); errors.Is(err, os.ErrNotExist) {
			if err := s.write(name, []byte(content)); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

func (s *store) path(parts ...string) string {
	return filepath.Join(append([]string{s.root}, parts...)...)
}

func (s *store) blob(digest v1.Hash) string { return s.path("blobs", digest.Algorithm, digest.Hex) }

func (s *store) hasBlob(digest v1.Hash) bool {
	_, err := os.Stat(s.blob(digest))
	return err == nil
}

// write makes a file, whole or not at all.
func (s *store) write(name string, content []byte) error {
	aside, err := os.CreateTemp(s.path("work"), "new-*")
	if err != nil {
		return err
	}
	defer os.Remove(aside.Name())
	if _, err := aside.Write(content); err != nil {
		aside.Close()
		return err
	}
	if err := aside.Close(); err != nil {
		return err
	}
	return os.Rename(aside.Name(), s.path(name))
}

// link makes a symbolic link, in the place of one that may be there.
func (s *store) link(target, name string) error {
	aside := s.path("work", fmt.Sprintf("link-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err := os.Symlink(target, aside); err != nil {
		return err
	}
	if err := os.Rename(aside, s.path(name)); err != nil {
		os.Remove(aside)
		return err
	}
	return nil
}

// share holds the store's lock with others that add.
func (s *store) share(ctx context.Context) (*os.File, error) {
	return flock(ctx, s.path("lock"), unix.LOCK_SH, nil)
}

// alone holds the store's lock against all others, for which it waits half a minute.
func (s *store) alone(ctx context.Context) (*os.File, error) {
	waiting, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	held, err := flock(waiting, s.path("lock"), unix.LOCK_EX, nil)
	if err != nil && ctx.Err() == nil {
		return nil, fail(busy, "images are being pulled into %s: try again when that is done", s.root)
	}
	return held, err
}

// flock locks a file, which it makes; closing it lets go. Waiting ends with the context.
func flock(ctx context.Context, path string, how int, waiting func()) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		for {
			err = unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
			if err != unix.EWOULDBLOCK && err != unix.EINTR {
				break
			}
			if waiting != nil {
				waiting()
			}
			select {
			case <-ctx.Done():
				file.Close()
				return nil, ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
		if err != nil {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// What was waited for may have been renamed or removed meanwhile.
		if same(file, path) {
			return file, nil
		}
		file.Close()
	}
}

func same(file *os.File, path string) bool {
	ours, err := file.Stat()
	if err != nil {
		return false
	}
	theirs, err := os.Lstat(path)
	return err == nil && os.SameFile(ours, theirs)
}

// layer finds the unpacked layer of this content; empty if there is none.
func (s *store) layer(diffID v1.Hash) string {
	target, err := os.Readlink(s.path("diff-ids", diffID.Algorithm+"-"+diffID.Hex))
	if err != nil {
		return ""
	}
	name := filepath.Base(target)
	if _, err := os.Stat(s.path("layers", name)); err != nil {
		return ""
	}
	return name
}

// newLayer makes an empty folder for a layer, whose number no other has.
func (s *store) newLayer() (string, error) {
	entries, err := os.ReadDir(s.path("layers"))
	if err != nil {
		return "", err
	}
	next := 1
	for _, entry := range entries {
		text, _, _ := strings.Cut(entry.Name(), ".")
		if number, err := strconv.Atoi(text); err == nil && number >= next {
			next = number + 1
		}
	}
	for ; ; next++ {
		name := strconv.Itoa(next)
		partial := s.path("layers", name+".partial")
		err := os.Mkdir(partial, 0o755)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		// Only now is the number this one's: another layer may have got it, and been completed, since the look above.
		if _, err := os.Lstat(s.path("layers", name)); err == nil {
			if err := os.Remove(partial); err != nil {
				return "", err
			}
			continue
		}
		return name, os.Chmod(partial, 0o755)
	}
}

func (s *store) leftOut(layer string) int {
	text, err := os.ReadFile(s.path("layers", layer+".left-out"))
	if err != nil {
		return 0
	}
	count, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return count
}

// whole checks that all layers of a record are there.
func (s *store) whole(record *Record) bool {
	for _, layer := range record.Layers {
		if _, err := os.Stat(s.path("layers", layer)); err != nil {
			return false
		}
	}
	return true
}

func (s *store) readRecord(path string) (*Record, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	record := &Record{}
	if err := json.Unmarshal(content, record); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return record, nil
}

// find reads the record of a full name; nil if there is none.
func (s *store) find(name string) *Record {
	record, err := s.readRecord(s.path("names", escape(name)))
	if err != nil {
		return nil
	}
	return record
}

// lookup finds an image by what a user writes: a name, an id, or the beginning of an id.
func (s *store) lookup(text string) (*Record, error) {
	if name, err := parseName(text); err == nil {
		if record := s.find(name.String()); record != nil {
			return record, nil
		}
	}
	records, err := s.records()
	if err != nil {
		return nil, err
	}
	var found []*Record
	prefix := strings.TrimPrefix(text, "sha256:")
	for _, record := range records {
		if len(prefix) >= 6 && strings.HasPrefix(strings.TrimPrefix(record.ID, "sha256:"), prefix) {
			found = append(found, record)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	if len(found) > 1 {
		return nil, fail(invalid, "image %q: %d images have ids that begin so", text, len(found))
	}
	return nil, fail(notFound, "image %q: not found in the store", text)
}

// records reads all, sorted by their first names.
func (s *store) records() ([]*Record, error) {
	entries, err := os.ReadDir(s.path("images"))
	if err != nil {
		return nil, err
	}
	var found []*Record
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		record, err := s.readRecord(s.path("images", entry.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, record)
	}
	sort.SliceStable(found, func(i, j int) bool { return strings.Join(found[i].Names, " ") < strings.Join(found[j].Names, " ") })
	return found, nil
}

// put writes a record with more names and digests; a name that another image had is this one's from now on.
func (s *store) put(ctx context.Context, record *Record, names, digests []string) error {
	held, err := flock(ctx, s.path("work", "records.lock"), unix.LOCK_EX, nil)
	if err != nil {
		return err
	}
	defer held.Close()
	if old, err := s.readRecord(s.recordPath(record.ID)); err == nil {
		record.Names, record.Digests = old.Names, old.Digests
	}
	for _, name := range names {
		if other := s.find(name); other != nil && other.ID != record.ID {
			other.Names = without(other.Names, name)
			if err := s.writeRecord(other); err != nil {
				return err
			}
		}
		record.Names = with(record.Names, name)
	}
	for _, digest := range digests {
		record.Digests = with(record.Digests, digest)
	}
	if err := s.writeRecord(record); err != nil {
		return err
	}
	if err := s.addToIndex(record); err != nil {
		return err
	}
	for _, name := range append(slices.Clone(names), digests...) {
		if err := s.link("../images/"+strings.TrimPrefix(record.ID, "sha256:")+".json", "names/"+escape(name)); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) recordPath(id string) string {
	return s.path("images", strings.TrimPrefix(id, "sha256:")+".json")
}

func (s *store) writeRecord(record *Record) error {
	for _, list := range []*[]string{&record.Names, &record.Digests, &record.Layers} {
		if *list == nil {
			*list = []string{}
		}
	}
	content, err := json.MarshalIndent(record, "", " ")
	if err != nil {
		return err
	}
	return s.write("images/"+filepath.Base(s.recordPath(record.ID)), content)
}

func (s *store) readIndex() (*v1.IndexManifest, error) {
	content, err := os.Open(s.path("index.json"))
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return v1.ParseIndexManifest(content)
}

// addToIndex lists an image's manifest in the layout's index.
func (s *store) addToIndex(record *Record) error {
	index, err := s.readIndex()
	if err != nil {
		return err
	}
	for _, each := range index.Manifests {
		if each.Digest.String() == record.Manifest {
			return nil
		}
	}
	descriptor, err := s.describe(record)
	if err != nil {
		return err
	}
	index.Manifests = append(index.Manifests, descriptor)
	return s.writeIndex(index)
}

func (s *store) writeIndex(index *v1.IndexManifest) error {
	content, err := json.Marshal(index)
	if err != nil {
		return err
	}
	return s.write("index.json", content)
}

func with(list []string, item string) []string {
	if slices.Contains(list, item) {
		return list
	}
	return append(list, item)
}

func without(list []string, item string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(each string) bool { return each == item })
}

// free reports how many bytes may be written to the disk of a path: a twentieth of it, and at most 2 GiB,
// are left to others.
func free(path string) (int64, error) {
	var found unix.Statfs_t
	if err := unix.Statfs(path, &found); err != nil {
		return 0, err
	}
	if found.Files > 0 && found.Ffree < found.Files/20 {
		return 0, nil
	}
	size := int64(found.Bsize)
	return int64(found.Bavail)*size - min(int64(found.Blocks)*size/20, 2<<30), nil
}

// checkSpace fails where so many bytes more would leave too little.
func checkSpace(path string, bytes int64) error {
	left, err := free(path)
	if err != nil {
		return err
	}
	if bytes > left {
		return &failure{diskFull, fmt.Sprintf("%s: %d MB more do not fit, as %d MB may still be written there: %v",
			path, (bytes+999999)/1000000, max(left, 0)/1000000, syscall.ENOSPC), syscall.ENOSPC}
	}
	return nil
}
