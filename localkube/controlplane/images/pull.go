package images

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const reportEvery = 250 * time.Millisecond

// pull brings an image into the store, and reports whether anything has changed.
func (s *store) pull(ctx context.Context, image imageName, platform string, given *secrets, mayBeHere bool, report *progress) (*Record, bool, error) {
	held, err := s.share(ctx)
	if err != nil {
		return nil, false, err
	}
	defer held.Close()
	from, err := openRegistry(ctx, image, given, mayBeHere)
	if err != nil {
		return nil, false, err
	}
	digest, endpoints, err := from.resolve(ctx)
	if err != nil {
		return nil, false, fail(reasonOf(err), "failed to pull and unpack image %q: %w", image, err)
	}
	canonical := image.repository() + "@" + digest.String()
	var names []string
	if image.digest() == "" {
		names = []string{image.String()}
	}
	if record := s.current(canonical, platform); record != nil {
		if other := s.find(image.String()); other == nil || other.ID != record.ID {
			err = s.put(ctx, record, names, nil)
		}
		return record, false, err
	}
	w := newWorker(held)
	defer w.stop()
	chosen, err := s.fetchManifest(ctx, endpoints, digest, platform, mostNested)
	if err == nil {
		report.announce(chosen.manifest)
		chosen.fetch = func(ctx context.Context, blob v1.Descriptor) error {
			return s.download(ctx, endpoints, blob, report.layer(blob))
		}
		var record *Record
		if record, err = s.add(ctx, w, chosen, platform, names, []string{canonical}); err == nil {
			return record, true, nil
		}
	}
	return nil, false, fail(reasonOf(err), "failed to pull and unpack image %q: %w", image, err)
}

// current finds the image of a digest, if it is for this platform and whole.
func (s *store) current(canonical, platform string) *Record {
	record := s.find(canonical)
	if record == nil || !s.whole(record) {
		return nil
	}
	if fits(&v1.ConfigFile{OS: record.OS, Architecture: record.Architecture, Variant: record.Variant}, platform) != nil {
		return nil
	}
	return record
}

// fetchManifest fetches the manifest of a digest, through indexes, and keeps what it passes.
func (s *store) fetchManifest(ctx context.Context, from []*endpoint, digest v1.Hash, platform string, depth int) (candidate, error) {
	content, media, err := s.manifest(ctx, from, digest)
	if err != nil {
		return candidate{}, err
	}
	var stated struct {
		MediaType types.MediaType   `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
		Layers    []json.RawMessage `json:"layers"`
		Config    json.RawMessage   `json:"config"`
	}
	if err := json.Unmarshal(content, &stated); err != nil {
		return candidate{}, fail(fromRegistry, "the manifest %s cannot be read as JSON", digest)
	}
	if stated.MediaType != "" {
		media = stated.MediaType
	}
	switch {
	case media.IsIndex() || media == "" && stated.Manifests != nil:
		if depth == 0 {
			return candidate{}, fail(fromRegistry, "the index %s lists indexes that list indexes", digest)
		}
		index, err := v1.ParseIndexManifest(bytes.NewReader(content))
		if err != nil {
			return candidate{}, fail(fromRegistry, "the index %s cannot be read as JSON", digest)
		}
		best, err := choose(index, platform)
		if err != nil {
			return candidate{}, err
		}
		return s.fetchManifest(ctx, from, best.Digest, platform, depth-1)
	case media.IsImage() || stated.Config != nil && stated.Layers != nil:
		if !media.IsImage() {
			media = types.OCIManifestSchema1
		}
		return candidate{manifest: content, digest: digest, media: media}, nil
	case media == types.DockerManifestSchema1 || media == types.DockerManifestSchema1Signed:
		return candidate{}, fail(fromRegistry, "media type %q is no longer supported: the image must be rebuilt", media)
	}
	return candidate{}, fail(fromRegistry, "the manifest %s has the media type %q, which is no image's", digest, media)
}

// manifest fetches a manifest of this digest, from the store if it is there.
func (s *store) manifest(ctx context.Context, from []*endpoint, digest v1.Hash) ([]byte, types.MediaType, error) {
	if content, err := os.ReadFile(s.blob(digest)); err == nil {
		return content, "", nil
	}
	var first error
	for _, each := range from {
		content, media, err := each.manifest(ctx, digest.String())
		if err == nil {
			found, _, _ := v1.SHA256(bytes.NewReader(content))
			if found == digest {
				return content, media, s.write("blobs/"+digest.Algorithm+"/"+digest.Hex, content)
			}
			err = fail(wrongDigest, "failed commit on ref %q: unexpected commit digest %s, expected %s", "manifest-"+digest.String(), found, digest)
		}
		if ctx.Err() != nil {
			return nil, "", ctx.Err()
		}
		if first == nil {
			first = each.explain(err)
		}
	}
	return nil, "", first
}

// progress tells of layers at most every quarter of a second each.
type progress struct {
	say   func(event any)
	mutex sync.Mutex
	state map[string]*layerState
}

type layerState struct {
	told time.Time
	done int64
}

type layerEvent struct {
	Event  string `json:"event"`
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"`
	Size   int64  `json:"size"`
}

var layerTypes = []types.MediaType{
	types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer, types.OCIRestrictedLayer, types.OCIUncompressedRestrictedLayer,
	types.DockerLayer, types.DockerUncompressedLayer, types.DockerForeignLayer,
}

// announce tells of all layers before the first is fetched, so that their sum is known.
func (p *progress) announce(manifest []byte) {
	if parsed, err := v1.ParseManifest(bytes.NewReader(manifest)); err == nil {
		for _, blob := range parsed.Layers {
			p.layer(blob)(0)
		}
	}
}

func (p *progress) layer(blob v1.Descriptor) func(done int64) {
	if !slices.Contains(layerTypes, blob.MediaType) {
		return func(int64) {}
	}
	return func(done int64) {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		name := fmt.Sprint(blob.Digest)
		if p.state == nil {
			p.state = map[string]*layerState{}
		}
		old := p.state[name]
		now := time.Now()
		if old != nil && (done == old.done || done < blob.Size && now.Sub(old.told) < reportEvery) {
			return
		}
		p.state[name] = &layerState{now, done}
		p.say(layerEvent{"layer", name, done, blob.Size})
	}
}
