package images

import (
	"strings"

	"github.com/distribution/reference"
)

// imageName is a reference in full: with its registry, and with a digest or else a tag, as containerd writes it.
type imageName struct{ named reference.Named }

func parseName(text string) (imageName, error) {
	named, err := reference.ParseDockerRef(text)
	if err != nil {
		return imageName{}, fail(invalid, "failed to parse image name %q: %w", text, err)
	}
	if len(escape(named.String())) > 255 {
		return imageName{}, fail(invalid, "failed to parse image name %q: it is too long for a file's name", text)
	}
	return imageName{named}, nil
}

func (n imageName) String() string     { return n.named.String() }
func (n imageName) registry() string   { return reference.Domain(n.named) }
func (n imageName) path() string       { return reference.Path(n.named) }
func (n imageName) repository() string { return n.named.Name() }

// object is the tag or the digest.
func (n imageName) object() string {
	if digest := n.digest(); digest != "" {
		return digest
	}
	if tagged, ok := n.named.(reference.Tagged); ok {
		return tagged.Tag()
	}
	return "latest"
}

func (n imageName) digest() string {
	if digested, ok := n.named.(reference.Digested); ok {
		return digested.Digest().String()
	}
	return ""
}

// escape writes a name as Python's urllib.parse.quote(name, safe="") does.
func escape(name string) string {
	const hex = "0123456789ABCDEF"
	var out strings.Builder
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("_.-~", c) >= 0:
			out.WriteByte(c)
		default:
			out.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return out.String()
}
