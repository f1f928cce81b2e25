package images

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/platforms"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	specs "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const mostNested = 3

// candidate is an image about to be added: its manifest, and how what belongs to it gets into the store.
type candidate struct {
	manifest []byte
	digest   v1.Hash
	media    types.MediaType
	// fetch brings a blob into the store; nil where all are there.
	fetch func(ctx context.Context, blob v1.Descriptor) error
}

// add unpacks the layers of an image and writes its record.
func (s *store) add(ctx context.Context, w *worker, image candidate, platform string, names, digests []string) (*Record, error) {
	manifest, err := v1.ParseManifest(bytes.NewReader(image.manifest))
	if err != nil {
		return nil, fail(fromRegistry, "the manifest %s cannot be read as JSON", image.digest)
	}
	fetch := image.fetch
	if fetch == nil {
		fetch = func(_ context.Context, blob v1.Descriptor) error {
			if !s.hasBlob(blob.Digest) {
				return fail(archiveError, "content digest %s: not found", blob.Digest)
			}
			return nil
		}
	}
	if err := fetch(ctx, manifest.Config); err != nil {
		return nil, err
	}
	config, err := s.readConfig(manifest.Config.Digest)
	if err != nil {
		return nil, err
	}
	if err := fits(config, platform); err != nil {
		return nil, err
	}
	if len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		return nil, fail(fromRegistry, "the image has %d layers, and its config %s tells of %d",
			len(manifest.Layers), manifest.Config.Digest, len(config.RootFS.DiffIDs))
	}
	// The next layers are fetched while the first are unpacked.
	group, working := errgroup.WithContext(ctx)
	fetching := make(chan struct{}, downloads)
	unpacking := make(chan struct{}, max(2, min(runtime.NumCPU(), 4)))
	layers := make([]string, len(manifest.Layers))
	implied := make([][]string, len(manifest.Layers))
	for i, blob := range manifest.Layers {
		group.Go(func() error {
			if err := limited(working, fetching, func() error { return fetch(working, blob) }); err != nil {
				return err
			}
			return limited(working, unpacking, func() (err error) {
				layers[i], implied[i], err = s.unpack(working, w, blob.Digest, config.RootFS.DiffIDs[i])
				return err
			})
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	record, err := s.newRecord(image, manifest, config, layers)
	if err != nil {
		return nil, err
	}
	for i, names := range implied {
		if len(names) == 0 {
			continue
		}
		var lower []string
		for _, layer := range layers[:i] {
			lower = append(lower, s.path("layers", layer))
		}
		if _, err := w.run(ctx, order{Do: "inherit", Folder: s.path("layers", layers[i]), Names: names, Lower: lower}); err != nil {
			return nil, err
		}
	}
	return record, s.put(ctx, record, names, digests)
}

func limited(ctx context.Context, slots chan struct{}, do func() error) error {
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
		return do()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *store) newRecord(image candidate, manifest *v1.Manifest, config *v1.ConfigFile, layers []string) (*Record, error) {
	var raw struct {
		Config json.RawMessage `json:"config"`
	}
	content, err := os.ReadFile(s.blob(manifest.Config.Digest))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(content, &raw); err != nil {
		return nil, err
	}
	if len(raw.Config) == 0 || string(raw.Config) == "null" {
		raw.Config = json.RawMessage("{}")
	}
	record := &Record{
		ID: manifest.Config.Digest.String(), Pulled: time.Now().Unix(), OS: config.OS, Architecture: config.Architecture,
		Variant: config.Variant, Config: raw.Config, Layers: layers, Manifest: image.digest.String(), MediaType: string(image.media),
	}
	for i, layer := range layers {
		record.Size += manifest.Layers[i].Size
		record.LeftOut += s.leftOut(layer)
	}
	return record, nil
}

func (s *store) readConfig(digest v1.Hash) (*v1.ConfigFile, error) {
	file, err := os.Open(s.blob(digest))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	config, err := v1.ParseConfigFile(file)
	if err != nil {
		return nil, fail(fromRegistry, "the config %s cannot be read as JSON", digest)
	}
	return config, nil
}

// fits checks an image that no index has chosen.
func fits(config *v1.ConfigFile, platform string) error {
	if config.OS == "" && config.Architecture == "" {
		return nil
	}
	wanted, err := platforms.Parse(platform)
	if err != nil {
		return fail(invalid, "%w", err)
	}
	has := specs.Platform{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}
	if !platforms.Only(wanted).Match(has) {
		return fail(noPlatform, "no match for platform in manifest: the image is for %s, and %s is wanted",
			platforms.Format(has), platform)
	}
	return nil
}

// choose finds the manifest for a platform in an index.
func choose(index *v1.IndexManifest, platform string) (v1.Descriptor, error) {
	wanted, err := platforms.Parse(platform)
	if err != nil {
		return v1.Descriptor{}, fail(invalid, "%w", err)
	}
	matcher := platforms.Only(wanted)
	var best v1.Descriptor
	var bestPlatform specs.Platform
	var others []string
	for _, each := range index.Manifests {
		if !each.MediaType.IsImage() && !each.MediaType.IsIndex() {
			continue
		}
		if each.Platform == nil {
			if best.Digest.Hex == "" {
				best = each // its config decides
			}
			continue
		}
		has := specs.Platform{OS: each.Platform.OS, Architecture: each.Platform.Architecture, Variant: each.Platform.Variant}
		if !matcher.Match(has) {
			if has.OS != "unknown" {
				others = append(others, platforms.Format(has))
			}
			continue
		}
		if best.Platform == nil || matcher.Less(has, bestPlatform) {
			best, bestPlatform = each, has
		}
	}
	if best.Digest.Hex == "" {
		return best, fail(noPlatform, "no match for platform in manifest: the image is for %s, and %s is wanted",
			strings.Join(others, ", "), platform)
	}
	return best, nil
}

// unpack makes the layer of a blob, unless the store has one of the same content.
func (s *store) unpack(ctx context.Context, w *worker, blob, diffID v1.Hash) (string, []string, error) {
	if found := s.layer(diffID); found != "" {
		return found, nil, nil
	}
	// Another blob may only say that it has this content, and be slow to unpack.
	lockName := s.path("work", "unpack-"+diffID.Hex+"-"+blob.Hex[:12])
	held, err := flock(ctx, lockName, unix.LOCK_EX, nil)
	if err != nil {
		return "", nil, err
	}
	defer held.Close()
	defer os.Remove(lockName)
	if found := s.layer(diffID); found != "" {
		return found, nil, nil
	}
	name, err := s.newLayer()
	if err != nil {
		return "", nil, err
	}
	partial := s.path("layers", name+".partial")
	done, err := w.run(ctx, order{Do: "unpack", Blob: s.blob(blob), Folder: partial})
	if err == nil && done.Unpacked.DiffID != diffID.String() {
		err = fail(wrongDigest, "wrong diff id calculated on extraction %q, expected %q", done.Unpacked.DiffID, diffID)
	}
	if err == nil && done.Unpacked.LeftOut > 0 {
		err = s.write("layers/"+name+".left-out", []byte(strconv.Itoa(done.Unpacked.LeftOut)))
	}
	if err == nil {
		err = os.Rename(partial, s.path("layers", name))
	}
	if err == nil {
		err = s.link("../layers/"+name, "diff-ids/"+diffID.Algorithm+"-"+diffID.Hex)
	}
	if err != nil {
		// Also after an interruption: what is left would only fill the disk.
		w.run(context.WithoutCancel(ctx), order{Do: "remove", Folder: partial})
		return "", nil, fail(reasonOf(err), "failed to extract layer %s: %w", diffID, err)
	}
	return name, done.Unpacked.Implied, nil
}

// describe makes the descriptor of an image's manifest, with its platform.
func (s *store) describe(record *Record) (v1.Descriptor, error) {
	digest, err := v1.NewHash(record.Manifest)
	if err != nil {
		return v1.Descriptor{}, err
	}
	found, err := os.Stat(s.blob(digest))
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("the manifest of %s: %w", record.ID, err)
	}
	return v1.Descriptor{
		MediaType: types.MediaType(record.MediaType), Digest: digest, Size: found.Size(),
		Platform: &v1.Platform{OS: record.OS, Architecture: record.Architecture, Variant: record.Variant},
	}, nil
}
