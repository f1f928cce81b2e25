package images

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

type prunedEvent struct {
	Event    string   `json:"event"`
	Untagged []string `json:"untagged"`
	Images   []string `json:"images"`
	Freed    int64    `json:"freed"` // bytes
}

// users lists the links of those that use an image now.
func (s *store) users(id string) []string {
	entries, err := os.ReadDir(s.path("users"))
	if err != nil {
		return nil
	}
	var found []string
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), strings.TrimPrefix(id, "sha256:")+".") {
			continue
		}
		if _, err := os.Stat(s.path("users", entry.Name())); !errors.Is(err, os.ErrNotExist) {
			found = append(found, entry.Name())
		}
	}
	return found
}

// lastUsed is when the image was pulled, or when somebody last touched its record or linked to it.
func (s *store) lastUsed(record *Record) time.Time {
	last := time.Unix(record.Pulled, 0)
	if found, err := os.Stat(s.recordPath(record.ID)); err == nil && found.ModTime().After(last) {
		last = found.ModTime()
	}
	return last
}

// dropVoidUsers removes links to what is gone; that they have ended is a use of the image.
func (s *store) dropVoidUsers() error {
	entries, err := os.ReadDir(s.path("users"))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := s.path("users", entry.Name())
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		hex, _, _ := strings.Cut(entry.Name(), ".")
		if made, err := os.Lstat(path); err == nil {
			record := s.path("images", hex+".json")
			if used, err := os.Stat(record); err == nil && used.ModTime().Before(made.ModTime()) {
				os.Chtimes(record, time.Time{}, made.ModTime())
			}
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

func runPrune(ctx context.Context, s *store, c *command, _ []string) error {
	held, err := s.alone(ctx)
	if err != nil {
		return err
	}
	defer held.Close()
	w := newWorker(held)
	defer w.stop()
	if err := s.dropVoidUsers(); err != nil {
		return err
	}
	event := prunedEvent{Event: "pruned", Untagged: []string{}, Images: []string{}}
	oldest := time.Now().Add(-c.minAge)
	if event.Freed, err = s.sweep(ctx, w, oldest); err != nil {
		return err
	}
	if c.all {
		records, err := s.records()
		if err != nil {
			return err
		}
		sort.SliceStable(records, func(i, j int) bool { return s.lastUsed(records[i]).Before(s.lastUsed(records[j])) })
		for _, record := range records {
			if c.target > 0 && event.Freed >= c.target {
				break
			}
			if len(s.users(record.ID)) > 0 || s.lastUsed(record).After(oldest) {
				continue
			}
			// For room alone: one that was loaded, not pulled, may be had from nowhere else.
			if c.target > 0 && len(record.Digests) == 0 {
				continue
			}
			if err := s.forget(record); err != nil {
				return err
			}
			freed, err := s.sweep(ctx, w, oldest)
			if err != nil {
				return err
			}
			event.Images = append(event.Images, record.ID)
			event.Untagged = append(event.Untagged, record.Names...)
			event.Freed += freed
		}
	}
	say(event)
	return nil
}

func runRemove(ctx context.Context, s *store, _ *command, arguments []string) error {
	held, err := s.alone(ctx)
	if err != nil {
		return err
	}
	defer held.Close()
	w := newWorker(held)
	defer w.stop()
	event := prunedEvent{Event: "removed", Untagged: []string{}, Images: []string{}}
	for _, text := range arguments {
		record, err := s.lookup(text)
		if err != nil {
			return err
		}
		// One name of several goes alone, as in Docker.
		if name, err := parseName(text); err == nil && name.digest() == "" && slices.Contains(record.Names, name.String()) {
			if len(record.Names) > 1 {
				if err := s.untag(record, name.String()); err != nil {
					return err
				}
				event.Untagged = append(event.Untagged, name.String())
				continue
			}
		}
		if users := s.users(record.ID); len(users) > 0 {
			return fail(inUse, "image %q is in use by %d containers: delete their pods first", text, len(users))
		}
		if err := s.forget(record); err != nil {
			return err
		}
		event.Untagged = append(event.Untagged, record.Names...)
		event.Images = append(event.Images, record.ID)
	}
	if event.Freed, err = s.sweep(ctx, w, time.Now().Add(-2*time.Minute)); err != nil {
		return err
	}
	say(event)
	return nil
}

func (s *store) untag(record *Record, name string) error {
	record.Names = without(record.Names, name)
	if err := s.writeRecord(record); err != nil {
		return err
	}
	return os.Remove(s.path("names", escape(name)))
}

// forget removes an image's record and names; its files are swept.
func (s *store) forget(record *Record) error {
	for _, name := range append(slices.Clone(record.Names), record.Digests...) {
		if found := s.find(name); found != nil && found.ID != record.ID {
			continue
		}
		if err := os.Remove(s.path("names", escape(name))); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Remove(s.recordPath(record.ID))
}

// sweep removes what no image needs. Half a blob that is younger than the given moment may still be continued.
func (s *store) sweep(ctx context.Context, w *worker, oldest time.Time) (int64, error) {
	records, err := s.records()
	if err != nil {
		return 0, err
	}
	blobs, layers := map[string]bool{}, map[string]bool{}
	index := &v1.IndexManifest{SchemaVersion: 2, MediaType: "application/vnd.oci.image.index.v1+json", Manifests: []v1.Descriptor{}}
	for _, record := range records {
		for _, layer := range record.Layers {
			layers[layer] = true
			layers[layer+".left-out"] = true
		}
		digest, err := v1.NewHash(record.Manifest)
		if err != nil {
			continue
		}
		content, err := os.ReadFile(s.blob(digest))
		if err != nil {
			continue
		}
		manifest, err := v1.ParseManifest(bytes.NewReader(content))
		if err != nil {
			continue
		}
		blobs[digest.Hex], blobs[manifest.Config.Digest.Hex] = true, true
		for _, layer := range manifest.Layers {
			blobs[layer.Digest.Hex] = true
		}
		if descriptor, err := s.describe(record); err == nil {
			index.Manifests = append(index.Manifests, descriptor)
		}
	}
	if err := s.writeIndex(index); err != nil {
		return 0, err
	}
	var freed int64
	remove := func(path string) error {
		done, err := w.run(ctx, order{Do: "remove", Folder: path})
		freed += done.Bytes
		return err
	}
	if err := s.each("names", func(path string, _ os.FileInfo) error {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return os.Remove(path)
		}
		return nil
	}); err != nil {
		return freed, err
	}
	// The link to a layer goes first: a sweep that is killed must leave no link to half a layer.
	if err := s.each("diff-ids", func(path string, _ os.FileInfo) error {
		target, err := os.Readlink(path)
		if err != nil || !layers[filepath.Base(target)] {
			return os.Remove(path)
		}
		return nil
	}); err != nil {
		return freed, err
	}
	for folder, needed := range map[string]map[string]bool{"layers": layers, "blobs/sha256": blobs} {
		if err := s.each(folder, func(path string, _ os.FileInfo) error {
			if needed[filepath.Base(path)] {
				return nil
			}
			return remove(path)
		}); err != nil {
			return freed, err
		}
	}
	err = s.each("work", func(path string, info os.FileInfo) error {
		if info.ModTime().After(oldest) || filepath.Base(path) == "records.lock" {
			return nil
		}
		return remove(path)
	})
	return freed, err
}

func (s *store) each(folder string, do func(path string, info os.FileInfo) error) error {
	entries, err := os.ReadDir(s.path(folder))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := do(s.path(folder, entry.Name()), info); err != nil {
			return err
		}
	}
	return nil
}
