package images

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"

	"trainyard/controlplane/outbound"
)

// errRefused is for addresses to which nobody may lead this machine by an image's name, a redirect, or the realm of
// a token.
var errRefused = errors.New("is an address of this machine or a metadata service, which images are not pulled from")

// dialer connects to registries on behalf of pods. Addresses are judged once names are resolved. The hosts that the
// machine's owner lists in hosts.toml may be anywhere.
type dialer struct {
	listed  map[string]bool // by host and port
	proxies map[string]bool
}

func newDialer() *dialer {
	made := &dialer{map[string]bool{}, map[string]bool{}}
	for _, scheme := range []string{"http", "https"} {
		target := &url.URL{Scheme: scheme, Host: "registry.invalid"}
		if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: target}); proxy != nil && err == nil {
			made.proxies[hostAndPort(proxy)] = true
		}
	}
	return made
}

// use makes a client connect by this dialer alone, to proxies as well.
func (d *dialer) use(client *http.Client) error {
	transport, ok := client.Transport.(*http.Transport)
	if !ok {
		return fmt.Errorf("%T connects by itself", client.Transport)
	}
	transport.DialContext = d.dial
	transport.ResponseHeaderTimeout = answerTimeout
	transport.MaxIdleConnsPerHost = downloads
	transport.OnProxyConnectResponse = func(_ context.Context, proxy *url.URL, _ *http.Request, response *http.Response) error {
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%w: %s says %d %s", errProxy, proxy.Host, response.StatusCode, http.StatusText(response.StatusCode))
		}
		return nil
	}
	return nil
}

// list takes the hosts of an image's registry: those of the owner's file, and with named also the registry itself.
func (d *dialer) list(hosts []docker.RegistryHost, registry string, named bool) {
	for _, host := range hosts {
		if named || isMirror(host.Host, registry) {
			d.listed[hostAndPort(&url.URL{Scheme: host.Scheme, Host: host.Host})] = true
		}
	}
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	connect := net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}
	if known := strings.ToLower(address); !d.listed[known] && !d.proxies[known] {
		connect.Control = func(_, resolved string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(resolved)
			if err != nil || !outbound.Permitted(at.Addr()) {
				return refusal(address)
			}
			return nil
		}
	}
	return connect.DialContext(ctx, network, address)
}

// check refuses a request for what it says. A proxy resolves names itself, so that they are looked at before it.
func (d *dialer) check(ctx context.Context, target *url.URL) error {
	host, at := strings.ToLower(target.Hostname()), hostAndPort(target)
	literal, err := netip.ParseAddr(host)
	isLiteral := err == nil
	switch {
	case d.listed[at]:
		if target.Scheme == "http" && !loopback(target.Host) {
			return plainError(target.Host)
		}
		return nil
	case isLiteral && !outbound.Permitted(literal), loopback(target.Host):
		return refusal(at)
	case target.Scheme == "http":
		return plainError(target.Host)
	}
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: target})
	if proxy == nil || err != nil {
		return nil
	}
	if isLiteral {
		return nil
	}
	if d.proxies[at] || endsInNumber(host) {
		return refusal(at)
	}
	found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // where only the proxy has names, it decides
	for _, address := range found {
		if !outbound.Permitted(address) {
			return refusal(at)
		}
	}
	return nil
}

func refusal(at string) error {
	return fmt.Errorf("%s %w: if the registry is yours, list it in ~/.config/trainyard/certs.d/HOST/hosts.toml", at, errRefused)
}

// endsInNumber finds what is an IPv4 address for C libraries alone, such as 0x7f000001, 127.1 and 2130706433.
// Source: https://url.spec.whatwg.org/#ends-in-a-number-checker
func endsInNumber(host string) bool {
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	last := labels[len(labels)-1]
	return strings.HasPrefix(last, "0x") || last != "" && strings.Trim(last, "0123456789") == ""
}

func isMirror(host, registry string) bool {
	return host != registry && !(registry == "docker.io" && host == "registry-1.docker.io")
}

func hostAndPort(of *url.URL) string {
	port := of.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[of.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(of.Hostname()), port)
}

func loopback(host string) bool {
	if bare, _, err := net.SplitHostPort(host); err == nil {
		host = bare
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if address, err := netip.ParseAddr(host); err == nil {
		return address.Unmap().IsLoopback()
	}
	return strings.EqualFold(host, "localhost") || strings.HasSuffix(strings.ToLower(host), ".localhost")
}

func plainError(host string) error {
	return fmt.Errorf("%w, and %s is none: serve it by HTTPS", errPlain, host)
}

var errPlain = errors.New("plain HTTP is for loopback addresses only")
