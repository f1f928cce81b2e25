package images

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	connectTimeout = 5 * time.Second
	answerTimeout  = 30 * time.Second
	mostManifest   = 8 << 20
	attempts       = 4
	longestPause   = 8 * time.Second
)

var manifestTypes = strings.Join([]string{
	string(types.OCIImageIndex), string(types.OCIManifestSchema1),
	string(types.DockerManifestList), string(types.DockerManifestSchema2), "*/*",
}, ", ")

// registry is where an image may be fetched: the mirrors of its registry in their order, then the registry itself.
type registry struct {
	image     imageName
	endpoints []*endpoint
}

// endpoint is one host, and how it is spoken to.
type endpoint struct {
	image   imageName
	host    docker.RegistryHost
	secrets *secrets
	base    *guard

	mutex   sync.Mutex
	clients []*http.Client // for each of the credentials, made when they are tried
	ping    *transport.Challenge
	good    int // the credentials that were accepted
}

// openRegistry reads containerd's hosts.toml of the image's registry, if there is one.
// Source: https://github.com/containerd/containerd/blob/main/docs/hosts.md
//
// Pods may name any registry, and the machine's owner may with mayBeHere name one on this machine.
func openRegistry(ctx context.Context, image imageName, given *secrets, mayBeHere bool) (*registry, error) {
	dialing := newDialer()
	options := config.HostOptions{UpdateClient: dialing.use}
	if folder := certsFolder(); folder != "" {
		options.HostDir = config.HostDirFromRoot(folder)
		if of, err := options.HostDir(image.registry()); err == nil && filepath.Base(of) != "_default" {
			mayBeHere = true
		}
	}
	hosts, err := config.ConfigureHosts(ctx, options)(image.registry())
	if err != nil {
		return nil, fail(fromRegistry, "failed to resolve reference %q: %w", image, err)
	}
	dialing.list(hosts, image.registry(), mayBeHere)
	found := &registry{image: image}
	for _, host := range hosts {
		if !host.Capabilities.Has(docker.HostCapabilityPull) {
			continue
		}
		if host.Scheme == "http" && !loopback(host.Host) {
			return nil, fail(fromRegistry, "failed to resolve reference %q: %w", image, plainError(host.Host))
		}
		found.endpoints = append(found.endpoints, &endpoint{
			image: image, host: host, secrets: given,
			base: &guard{inner: host.Client.Transport, dialing: dialing, host: host, registry: image.registry()},
		})
	}
	if len(found.endpoints) == 0 {
		return nil, fail(unreachable, "failed to resolve reference %q: no host to pull %s from", image, image.registry())
	}
	return found, nil
}

func certsFolder() string {
	base := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		base = filepath.Join(home, ".config")
	}
	return filepath.Join(base, "trainyard", "certs.d")
}

// guard is the lowest transport: it refuses what the dialer does, puts requests below the host's path, and remembers
// whether anything has answered.
type guard struct {
	inner    http.RoundTripper
	dialing  *dialer
	host     docker.RegistryHost
	registry string

	mutex    sync.Mutex
	answered bool
	failed   error
}

var errProxy = errors.New("the proxy refused")

func (g *guard) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := g.dialing.check(request.Context(), request.URL); err != nil {
		return nil, err
	}
	if rest, ours := strings.CutPrefix(request.URL.Path, "/v2/"); ours && request.URL.Host == g.host.Host {
		request = request.Clone(request.Context())
		request.URL.Path = strings.TrimSuffix(g.host.Path, "/") + "/" + rest
		request.URL.RawPath = ""
		if isMirror(g.host.Host, g.registry) {
			query := request.URL.Query()
			query.Set("ns", g.registry) // by which a mirror of several registries knows whose image is meant
			request.URL.RawQuery = query.Encode()
		}
		for key, values := range g.host.Header {
			request.Header[key] = values
		}
	}
	response, err := g.inner.RoundTrip(request)
	if err == nil {
		response.Body = pace(response.Body)
	}
	if err == nil && (response.StatusCode >= 300 || request.URL.Host == g.host.Host && !strings.Contains(request.URL.Path, "/blobs/")) {
		// Errors, manifests and tokens are read as a whole.
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, mostManifest+1), response.Body}
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if err == nil {
		g.answered = true
	} else if nobody(err) {
		g.failed = err
	} else if request.Context().Err() == nil {
		g.answered = true
	}
	return response, err
}

// silent returns why nothing has ever answered, nil if something has.
func (g *guard) silent() error {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.answered {
		return nil
	}
	return g.failed
}

// nobody tells an error of connecting from what a server did.
func nobody(err error) bool {
	var dns *net.DNSError
	var op *net.OpError
	return errors.As(err, &dns) || errors.Is(err, errProxy) ||
		errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect") ||
		strings.Contains(err.Error(), "TLS handshake timeout")
}

// client makes the client for the credentials of that index; nil if there are no more.
func (e *endpoint) client(ctx context.Context, index int) (*http.Client, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	host := e.host.Host
	if host == "registry-1.docker.io" {
		host = "docker.io" // whose credentials are known by this name
	}
	all := e.secrets.authenticators(host, e.image.path())
	if index >= len(all) {
		return nil, nil
	}
	for len(e.clients) < len(all) {
		e.clients = append(e.clients, nil)
	}
	if e.clients[index] != nil {
		return e.clients[index], nil
	}
	var options []name.Option
	if e.host.Scheme == "http" {
		options = append(options, name.Insecure)
	}
	registry, err := name.NewRegistry(e.host.Host, options...)
	if err != nil {
		return nil, err
	}
	if e.ping == nil {
		if e.ping, err = e.challenge(ctx, registry); err != nil {
			return nil, err
		}
	}
	tripper := transport.NewUserAgent(e.base, "trainyard")
	token := &transport.Token{}
	if strings.EqualFold(e.ping.Scheme, "bearer") {
		scopes := []string{"repository:" + e.image.path() + ":pull"}
		if token, err = transport.Exchange(ctx, registry, all[index], tripper, scopes, e.ping); err != nil {
			return nil, err
		}
		if token.Token == "" {
			token.Token = token.AccessToken
		}
	} else if e.ping.Scheme == "" && all[index] != authn.Anonymous {
		// A registry that asks for nothing gets nothing.
		all[index] = authn.Anonymous
	}
	authorized, err := transport.FromToken(registry, all[index], tripper, e.ping, token)
	if err != nil {
		return nil, err
	}
	e.clients[index] = &http.Client{Transport: authorized}
	return e.clients[index], nil
}

func (e *endpoint) challenge(ctx context.Context, registry name.Registry) (*transport.Challenge, error) {
	for attempt := 1; ; attempt++ {
		found, err := transport.Ping(ctx, registry, e.base)
		var status *transport.Error
		if err == nil || !errors.As(err, &status) {
			return found, err
		}
		if status.StatusCode == http.StatusNotFound {
			// Mirrors below a path need not answer there.
			return &transport.Challenge{Insecure: e.host.Scheme == "http"}, nil
		}
		if !passing(status.StatusCode) || attempt == attempts {
			return nil, err
		}
		if pause(ctx, time.Duration(attempt)*500*time.Millisecond) != nil {
			return nil, ctx.Err()
		}
	}
}

// get sends a request with the credentials that are accepted, and again where that may help.
func (e *endpoint) get(ctx context.Context, method, path string, header http.Header) (*http.Response, error) {
	var refused error
	for index := e.accepted(); ; index++ {
		client, err := e.client(ctx, index)
		if err == nil && client == nil {
			return nil, refused
		}
		var response *http.Response
		if err == nil {
			response, err = e.persist(ctx, client, method, path, header)
		}
		if err == nil {
			e.mutex.Lock()
			e.good = index
			e.mutex.Unlock()
			return response, nil
		}
		var status *transport.Error
		if !errors.As(err, &status) || status.StatusCode != http.StatusUnauthorized && status.StatusCode != http.StatusForbidden {
			return nil, err
		}
		if refused == nil || status.StatusCode == http.StatusForbidden {
			refused = err
		}
	}
}

func (e *endpoint) accepted() int {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.good
}

// persist repeats a request that was answered by "later" or by a failure that passes.
func (e *endpoint) persist(ctx context.Context, client *http.Client, method, path string, header http.Header) (*http.Response, error) {
	scheme := "https"
	if e.ping.Insecure {
		scheme = "http"
	}
	var waited time.Duration
	for attempt := 1; ; attempt++ {
		request, err := http.NewRequestWithContext(ctx, method, scheme+"://"+e.host.Host+"/v2/"+path, nil)
		if err != nil {
			return nil, err
		}
		for key, values := range header {
			request.Header[key] = values
		}
		response, err := client.Do(request)
		if err == nil {
			err = transport.CheckError(response, http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable)
			if err == nil {
				return response, nil
			}
			response.Body.Close()
		}
		again := time.Duration(attempt) * 500 * time.Millisecond
		var status *transport.Error
		if errors.As(err, &status) {
			if !passing(status.StatusCode) {
				return nil, err
			}
			if response != nil {
				if seconds, failed := strconv.Atoi(response.Header.Get("Retry-After")); failed == nil {
					again = time.Duration(max(seconds, 0)) * time.Second
				}
			}
		} else if nobody(err) || errors.Is(err, errRefused) || errors.Is(err, errPlain) || strings.Contains(err.Error(), "x509") {
			return nil, err
		}
		if waited += again; attempt == attempts || waited > longestPause || pause(ctx, again) != nil {
			return nil, err
		}
	}
}

// passing are failures after which a request is worth repeating.
func passing(status int) bool {
	return status == http.StatusTooManyRequests || status >= 500 || status == http.StatusRequestTimeout
}

func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}

// resolve asks for the digest that the reference has now, and returns where it was answered.
func (r *registry) resolve(ctx context.Context) (v1.Hash, []*endpoint, error) {
	var first error
	for i, each := range r.endpoints {
		if !each.host.Capabilities.Has(docker.HostCapabilityResolve) && r.image.digest() == "" {
			continue
		}
		digest, err := each.digest(ctx, r.image.object())
		if err == nil {
			return digest, append([]*endpoint{each}, r.endpoints[i+1:]...), nil
		}
		if ctx.Err() != nil {
			return v1.Hash{}, nil, ctx.Err()
		}
		said := each.explain(err)
		if first == nil || reasonOf(first) == unreachable || reasonOf(first) == notFound && reasonOf(said) != unreachable {
			first = said
		}
	}
	if first == nil {
		first = fail(fromRegistry, "no host of %s may resolve tags", r.image.registry())
	}
	return v1.Hash{}, nil, fail(reasonOf(first), "failed to resolve reference %q: %w", r.image, first)
}

func (e *endpoint) digest(ctx context.Context, object string) (v1.Hash, error) {
	path := e.image.path() + "/manifests/" + object
	response, err := e.get(ctx, http.MethodHead, path, http.Header{"Accept": {manifestTypes}})
	if err != nil {
		return v1.Hash{}, err
	}
	response.Body.Close()
	text := response.Header.Get("Docker-Content-Digest")
	if digest := e.image.digest(); digest != "" {
		text = digest
	}
	if text != "" {
		return v1.NewHash(text)
	}
	content, _, err := e.manifest(ctx, object)
	if err != nil {
		return v1.Hash{}, err
	}
	digest, _, err := v1.SHA256(bytes.NewReader(content))
	return digest, err
}

// manifest fetches a manifest or an index, whose digest the caller checks.
func (e *endpoint) manifest(ctx context.Context, object string) ([]byte, types.MediaType, error) {
	path := e.image.path() + "/manifests/" + object
	for attempt := 1; ; attempt++ {
		response, err := e.get(ctx, http.MethodGet, path, http.Header{"Accept": {manifestTypes}})
		if err != nil {
			return nil, "", err
		}
		content, err := io.ReadAll(io.LimitReader(response.Body, mostManifest+1))
		response.Body.Close()
		if len(content) > mostManifest {
			return nil, "", fail(fromRegistry, "the manifest %s has more than %d MB", object, mostManifest>>20)
		}
		if err == nil || attempt == attempts || ctx.Err() != nil || errors.Is(err, errSlow) {
			return content, types.MediaType(strings.TrimSpace(strings.Split(response.Header.Get("Content-Type"), ";")[0])), err
		}
	}
}

// explain gives an error of this host its reason, in containerd's words where it has some.
func (e *endpoint) explain(err error) error {
	var known *failure
	if errors.As(err, &known) {
		return err
	}
	// What a server has said may be another's secret, and a pod's events are no place for it.
	said := withoutContent(err)
	if silent := e.base.silent(); silent != nil && !errors.Is(err, errRefused) {
		return fail(unreachable, "failed to do request: %w", said)
	}
	var status *transport.Error
	if !errors.As(err, &status) {
		return fail(fromRegistry, "failed to do request: %w", said)
	}
	switch status.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fail(unauthorized,
			"pull access denied, repository does not exist or may require authorization: authorization failed: %w", said)
	case http.StatusNotFound:
		return fail(notFound, "%s: not found", e.image)
	case http.StatusTooManyRequests:
		return fail(rateLimited, "unexpected status: 429 Too Many Requests: %w", said)
	}
	return fail(fromRegistry, "unexpected status: %d %s: %w", status.StatusCode, http.StatusText(status.StatusCode), said)
}
