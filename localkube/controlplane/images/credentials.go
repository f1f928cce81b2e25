package images

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/kubernetes/pkg/credentialprovider"
)

const mostSecrets = 16 << 20

// secrets are the credentials of a pod, matched to images as the kubelet does.
type secrets struct {
	keyring credentialprovider.BasicDockerKeyring
}

// readSecrets reads {"auths": [a parsed .dockerconfigjson or .dockercfg, …]}; nothing is none.
func readSecrets(in io.Reader) (*secrets, error) {
	found := &secrets{}
	content, err := io.ReadAll(io.LimitReader(in, mostSecrets))
	if err != nil || len(strings.TrimSpace(string(content))) == 0 {
		return found, nil // closed
	}
	var given struct {
		Auths []json.RawMessage `json:"auths"`
	}
	if err := json.Unmarshal(content, &given); err != nil {
		return nil, fail(invalid, "credentials on standard input: %w", err)
	}
	for i, raw := range given.Auths {
		config, err := parseSecret(raw)
		if err != nil {
			// As the kubelet does, a broken secret is passed over. Its content is not repeated.
			fmt.Fprintf(os.Stderr, "images: credentials %d cannot be read\n", i)
			continue
		}
		found.keyring.Add(nil, config)
	}
	return found, nil
}

func parseSecret(raw json.RawMessage) (credentialprovider.DockerConfig, error) {
	var whole struct {
		Auths credentialprovider.DockerConfig `json:"auths"`
	}
	if err := json.Unmarshal(raw, &whole); err == nil && whole.Auths != nil {
		return whole.Auths, nil
	}
	var entries credentialprovider.DockerConfig
	err := json.Unmarshal(raw, &entries)
	return entries, err
}

// authenticators lists what to try for a repository of a registry, in this order: the pod's secrets, the user's
// own Docker configuration, no credentials.
func (s *secrets) authenticators(registry, path string) []authn.Authenticator {
	var found []authn.Authenticator
	matching, _ := s.keyring.Lookup(registry + "/" + path)
	for _, each := range matching {
		found = append(found, authn.FromConfig(authn.AuthConfig{
			Username: each.Username, Password: each.Password, Auth: each.Auth,
			IdentityToken: each.IdentityToken, RegistryToken: each.RegistryToken,
		}))
	}
	if registry == "docker.io" {
		registry = name.DefaultRegistry
	}
	// A broken configuration or helper is worth a line, and no reason to refuse public images.
	own, err := authn.DefaultKeychain.Resolve(resource{registry, path})
	if err != nil {
		fmt.Fprintln(os.Stderr, "images: the user's Docker credentials cannot be read:", err)
	} else if own != authn.Anonymous {
		found = append(found, own)
	}
	return append(found, authn.Anonymous)
}

// resource names a repository to the keychain; the library's own type refuses names of one letter.
type resource struct{ registry, path string }

func (r resource) String() string      { return r.registry + "/" + r.path }
func (r resource) RegistryStr() string { return r.registry }
