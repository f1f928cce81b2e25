package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	containerdName = "io.containerd.image.name"
	referenceName  = "org.opencontainers.image.ref.name"
	mostJSON       = 64 << 20
)

// archived is an archive of images: its files lie in a scratch folder, by the digests of their contents.
type archived struct {
	store  *store
	folder string
	files  map[string]file
	links  map[string]string
}

type file struct {
	path   string
	digest v1.Hash
	size   int64
}

// dockerImage is an entry of the manifest.json that `docker save` writes.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func runLoad(ctx context.Context, s *store, c *command, arguments []string) error {
	held, err := s.share(ctx)
	if err != nil {
		return err
	}
	defer held.Close()
	folder, err := os.MkdirTemp(s.path("work"), "load-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	a := &archived{s, folder, map[string]file{}, map[string]string{}}
	if err := a.read(ctx, arguments[0]); err != nil {
		return err
	}
	w := newWorker(held)
	defer w.stop()
	images, err := a.images(c.platform)
	if err != nil {
		return err
	}
	if len(images) == 0 {
		return fail(archiveError, "%s has neither an index.json nor a manifest.json with images: it is no archive of docker save, and no OCI layout", arguments[0])
	}
	for _, each := range images {
		known := s.find(each.digestName()) // never for one without a name
		record, err := s.add(ctx, w, each.candidate, c.platform, each.names, nil)
		if err != nil {
			return fail(reasonOf(err), "failed to load %s: %w", arguments[0], err)
		}
		fresh := known == nil || known.ID != record.ID
		say(imageEvent{Event: "loaded", Image: record, New: &fresh})
	}
	return nil
}

type found struct {
	candidate
	names []string
}

func (f found) digestName() string {
	if len(f.names) == 0 {
		return ""
	}
	return f.names[0]
}

// read copies the files of a tar, of a folder, or of standard input.
func (a *archived) read(ctx context.Context, place string) error {
	in := os.Stdin
	if place != "-" {
		opened, err := os.Open(place)
		if err != nil {
			return fail(archiveError, "%w", err)
		}
		defer opened.Close()
		in = opened
	}
	if info, err := in.Stat(); err == nil && info.IsDir() {
		return a.readFolder(ctx, place)
	}
	plain, err := decompress(in)
	if err != nil {
		return fail(archiveError, "%s: %w", place, err)
	}
	defer plain.Close()
	reader := tar.NewReader(plain)
	for {
		header, err := reader.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fail(archiveError, "%s is cut, or is no tar archive: %w", place, err)
		}
		name := strings.TrimPrefix(path.Clean("/"+header.Name), "/")
		switch header.Typeflag {
		case tar.TypeReg:
			err = a.keep(ctx, name, reader, header.Size)
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), header.Linkname)
		case tar.TypeLink:
			a.links[name] = strings.TrimPrefix(path.Clean("/"+header.Linkname), "/")
		}
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = fail(archiveError, "%s is cut: %w", place, err)
			}
			return err
		}
	}
}

func (a *archived) readFolder(ctx context.Context, place string) error {
	root, err := os.OpenRoot(place)
	if err != nil {
		return fail(archiveError, "%w", err)
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		in, err := root.Open(name)
		if err != nil {
			return err
		}
		defer in.Close()
		info, err := in.Stat()
		if err != nil {
			return err
		}
		return a.keep(ctx, name, in, info.Size())
	})
}

func (a *archived) keep(ctx context.Context, name string, in io.Reader, size int64) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := checkSpace(a.folder, size); err != nil {
		return err
	}
	out, err := os.CreateTemp(a.folder, "file-")
	if err != nil {
		return err
	}
	sum := sha256.New()
	written, err := io.CopyBuffer(io.MultiWriter(out, sum), struct{ io.Reader }{in}, make([]byte, 1<<20))
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	a.files[name] = file{out.Name(), v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}, written}
	return nil
}

// file finds a file, through links of the archive.
func (a *archived) file(name string) (file, bool) {
	for range 8 {
		if found, ok := a.files[name]; ok {
			return found, true
		}
		target, ok := a.links[name]
		if !ok {
			break
		}
		name = target
	}
	return file{}, false
}

func (a *archived) blob(digest v1.Hash) (file, bool) {
	found, ok := a.file("blobs/" + digest.Algorithm + "/" + digest.Hex)
	return found, ok && found.digest == digest
}

func (a *archived) json(name string, into any) (bool, error) {
	found, ok := a.file(name)
	if !ok {
		return false, nil
	}
	content, err := a.content(found)
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return false, fail(archiveError, "%s of the archive cannot be read: %w", name, err)
	}
	return true, nil
}

func (a *archived) content(of file) ([]byte, error) {
	if of.size > mostJSON {
		return nil, fail(archiveError, "a manifest in the archive has %d MB", of.size>>20)
	}
	return os.ReadFile(of.path)
}

// images lists what the archive has for a platform. Newer archives of docker save are OCI layouts as well.
func (a *archived) images(platform string) ([]found, error) {
	var docker []dockerImage
	if _, err := a.json("manifest.json", &docker); err != nil {
		return nil, err
	}
	var index v1.IndexManifest
	has, err := a.json("index.json", &index)
	if err != nil {
		return nil, err
	}
	if !has || len(index.Manifests) == 0 {
		return a.fromDocker(docker)
	}
	tags := map[string][]string{}
	for _, each := range docker {
		if config, ok := a.file(path.Clean(each.Config)); ok {
			tags[config.digest.Hex] = each.RepoTags
		}
	}
	byDigest := map[v1.Hash]*found{}
	var order []v1.Hash
	for _, each := range index.Manifests {
		image, err := a.fromIndex(each, platform, mostNested)
		if err != nil {
			return nil, err
		}
		if image == nil {
			continue
		}
		manifest, err := v1.ParseManifest(bytes.NewReader(image.manifest))
		if err != nil {
			return nil, fail(archiveError, "the manifest %s cannot be read: %w", image.digest, err)
		}
		for _, blob := range append(manifest.Layers, manifest.Config) {
			if err := a.move(blob.Digest); err != nil {
				return nil, err
			}
		}
		names := annotatedNames(each.Annotations)
		if len(names) == 0 {
			names = fullNames(tags[manifest.Config.Digest.Hex])
		}
		if byDigest[image.digest] == nil {
			byDigest[image.digest] = image
			order = append(order, image.digest)
		}
		for _, name := range names {
			byDigest[image.digest].names = with(byDigest[image.digest].names, name)
		}
	}
	var all []found
	for _, digest := range order {
		all = append(all, *byDigest[digest])
	}
	if len(all) == 0 {
		return nil, fail(noPlatform, "no match for platform in manifest: the archive has no image for %s", platform)
	}
	return all, nil
}

// fromIndex finds the image of a descriptor; nil if that is another platform's, or something else.
func (a *archived) fromIndex(descriptor v1.Descriptor, platform string, depth int) (*found, error) {
	content, ok := a.blob(descriptor.Digest)
	if !ok || depth == 0 {
		return nil, nil
	}
	text, err := a.content(content)
	if err != nil {
		return nil, err
	}
	if descriptor.MediaType.IsIndex() {
		index, err := v1.ParseIndexManifest(bytes.NewReader(text))
		if err != nil {
			return nil, fail(archiveError, "the index %s cannot be read: %w", descriptor.Digest, err)
		}
		best, err := choose(index, platform)
		if err != nil {
			return nil, nil
		}
		return a.fromIndex(best, platform, depth-1)
	}
	if !descriptor.MediaType.IsImage() {
		return nil, nil
	}
	if descriptor.Platform != nil {
		only := &v1.IndexManifest{Manifests: []v1.Descriptor{descriptor}}
		if _, err := choose(only, platform); err != nil {
			return nil, nil
		}
	}
	if err := a.move(descriptor.Digest); err != nil {
		return nil, err
	}
	return &found{candidate: candidate{manifest: text, digest: descriptor.Digest, media: descriptor.MediaType}}, nil
}

// fromDocker makes manifests for the images of an older docker save, whose layers are not compressed.
func (a *archived) fromDocker(images []dockerImage) ([]found, error) {
	var all []found
	for _, each := range images {
		config, ok := a.file(path.Clean(each.Config))
		if !ok {
			return nil, fail(archiveError, "the archive lacks %s, which its manifest.json names", each.Config)
		}
		manifest := v1.Manifest{
			SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: []v1.Descriptor{},
			Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Size: config.size, Digest: config.digest},
		}
		for _, name := range each.Layers {
			layer, ok := a.file(path.Clean(name))
			if !ok {
				return nil, fail(archiveError, "the archive lacks %s, which its manifest.json names", name)
			}
			media, err := layerMedia(layer.path)
			if err != nil {
				return nil, err
			}
			manifest.Layers = append(manifest.Layers, v1.Descriptor{MediaType: media, Size: layer.size, Digest: layer.digest})
		}
		for _, blob := range append(manifest.Layers, manifest.Config) {
			if err := a.move(blob.Digest); err != nil {
				return nil, err
			}
		}
		content, err := json.Marshal(manifest)
		if err != nil {
			return nil, err
		}
		digest, _, err := v1.SHA256(bytes.NewReader(content))
		if err != nil {
			return nil, err
		}
		if err := a.store.write("blobs/sha256/"+digest.Hex, content); err != nil {
			return nil, err
		}
		all = append(all, found{candidate{manifest: content, digest: digest, media: types.OCIManifestSchema1}, fullNames(each.RepoTags)})
	}
	return all, nil
}

func layerMedia(path string) (types.MediaType, error) {
	in, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer in.Close()
	magic := make([]byte, 4)
	n, _ := io.ReadFull(in, magic)
	switch {
	case bytes.HasPrefix(magic[:n], []byte{0x1f, 0x8b}):
		return types.OCILayer, nil
	case bytes.HasPrefix(magic[:n], []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return types.OCILayerZStd, nil
	}
	return types.OCIUncompressedLayer, nil
}

// move puts a blob of the archive into the store; one that the archive lacks may be there already.
func (a *archived) move(digest v1.Hash) error {
	moved := a.store.hasBlob(digest)
	for name, each := range a.files {
		if each.digest != digest {
			continue
		}
		if !moved {
			if err := os.Rename(each.path, a.store.blob(digest)); err != nil {
				return err
			}
			moved = true
		}
		each.path = a.store.blob(digest)
		a.files[name] = each
	}
	if !moved {
		return fail(archiveError, "the archive lacks %s, or has another content for it", digest)
	}
	return nil
}

func annotatedNames(annotations map[string]string) []string {
	if name := annotations[containerdName]; name != "" {
		return fullNames([]string{name})
	}
	// A bare tag names no image.
	if name := annotations[referenceName]; strings.ContainsAny(name, "/:") {
		return fullNames([]string{name})
	}
	return nil
}

func fullNames(texts []string) (names []string) {
	for _, text := range texts {
		if name, err := parseName(text); err == nil {
			names = append(names, name.String())
		}
	}
	return names
}

func runSave(ctx context.Context, s *store, c *command, arguments []string) error {
	held, err := s.share(ctx)
	if err != nil {
		return err
	}
	defer held.Close()
	if c.output == "" {
		return fail(invalid, "no file to write: say -o FILE, or -o - for standard output")
	}
	var records []*Record
	names := map[string][]string{}
	for _, text := range arguments {
		record, err := s.lookup(text)
		if err != nil {
			return err
		}
		if names[record.ID] == nil {
			records = append(records, record)
			names[record.ID] = []string{}
		}
		if name, err := parseName(text); err == nil && name.digest() == "" && s.find(name.String()) != nil {
			names[record.ID] = with(names[record.ID], name.String())
		}
	}
	if c.output == "-" {
		return s.save(ctx, os.Stdout, records, names)
	}
	folder, base := filepath.Split(c.output)
	if folder == "" {
		folder = "."
	}
	aside, err := os.CreateTemp(folder, "."+base+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(aside.Name())
	if err := errors.Join(s.save(ctx, aside, records, names), aside.Sync(), aside.Chmod(0o644), aside.Close()); err != nil {
		return err
	}
	if err := os.Rename(aside.Name(), c.output); err != nil {
		return err
	}
	info, err := os.Stat(c.output)
	if err != nil {
		return err
	}
	say(struct {
		Event string `json:"event"`
		File  string `json:"file"`
		Bytes int64  `json:"bytes"`
	}{"saved", c.output, info.Size()})
	return nil
}

// save writes an OCI layout that is an archive of docker save as well.
func (s *store) save(ctx context.Context, out io.Writer, records []*Record, names map[string][]string) error {
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{}}
	docker := []dockerImage{}
	var blobs []v1.Hash
	seen := map[v1.Hash]bool{}
	add := func(digest v1.Hash) {
		if !seen[digest] {
			seen[digest] = true
			blobs = append(blobs, digest)
		}
	}
	for _, record := range records {
		descriptor, err := s.describe(record)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(s.blob(descriptor.Digest))
		if err != nil {
			return err
		}
		manifest, err := v1.ParseManifest(bytes.NewReader(content))
		if err != nil {
			return err
		}
		image := dockerImage{Config: blobPath(manifest.Config.Digest), RepoTags: []string{}, Layers: []string{}}
		for _, layer := range manifest.Layers {
			image.Layers = append(image.Layers, blobPath(layer.Digest))
			add(layer.Digest)
		}
		add(manifest.Config.Digest)
		add(descriptor.Digest)
		if len(names[record.ID]) == 0 {
			index.Manifests = append(index.Manifests, descriptor)
		}
		for _, text := range names[record.ID] {
			name, err := parseName(text)
			if err != nil {
				return err
			}
			named := descriptor
			named.Annotations = map[string]string{containerdName: text, referenceName: name.object()}
			index.Manifests = append(index.Manifests, named)
			image.RepoTags = append(image.RepoTags, familiar(text))
		}
		docker = append(docker, image)
	}
	writer := tar.NewWriter(out)
	for _, digest := range blobs {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.saveBlob(writer, digest); err != nil {
			return err
		}
	}
	for _, each := range []struct {
		name    string
		content any
	}{
		{"index.json", index}, {"manifest.json", docker}, {"oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}},
	} {
		content, err := json.Marshal(each.content)
		if err != nil {
			return err
		}
		if err := writer.WriteHeader(&tar.Header{Name: each.name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		if _, err := writer.Write(content); err != nil {
			return err
		}
	}
	return writer.Close()
}

func (s *store) saveBlob(writer *tar.Writer, digest v1.Hash) error {
	in, err := os.Open(s.blob(digest))
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := writer.WriteHeader(&tar.Header{Name: blobPath(digest), Mode: 0o644, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(writer, in)
	return err
}

func blobPath(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// familiar shortens a name as Docker shows it.
func familiar(name string) string {
	name = strings.TrimPrefix(name, "docker.io/")
	return strings.TrimPrefix(name, "library/")
}
