package gateway

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	dialTimeout   = 15 * time.Second
	idleDatagrams = 60 * time.Second
	maxDialing    = 1024
)

// prefixes is a flag that may be repeated.
type prefixes []netip.Prefix

func (p *prefixes) String() string { return fmt.Sprint(*p) }

// Set implements flag.Value.
func (p *prefixes) Set(text string) error {
	prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		return err
	}
	*p = append(*p, prefix.Masked())
	return nil
}

// destination returns where a pod's packet may be carried; not to the host's loopback (0.0.0.0 is one of its
// names), not to the link-local metadata service that hands out a cloud machine's credentials, and not back into
// the site.
func (p prefixes) destination(id stack.TransportEndpointID) (netip.AddrPort, bool) {
	address := netip.AddrFrom4(id.LocalAddress.As4())
	if address.IsLoopback() || !address.IsGlobalUnicast() || address.As4()[0] == 0 {
		return netip.AddrPort{}, false
	}
	for _, prefix := range p {
		if prefix.Contains(address) {
			return netip.AddrPort{}, false
		}
	}
	return netip.AddrPortFrom(address, id.LocalPort), true
}

// forwardTCP connects first and accepts then, so that a pod sees a refused connection as refused.
func forwardTCP(network *stack.Stack, refused prefixes) *tcp.Forwarder {
	return tcp.NewForwarder(network, 0, maxDialing, func(request *tcp.ForwarderRequest) {
		to, ok := refused.destination(request.ID())
		if !ok {
			request.Complete(true)
			return
		}
		outside, err := net.DialTimeout("tcp4", to.String(), dialTimeout)
		if err != nil {
			request.Complete(true)
			return
		}
		var queue waiter.Queue
		endpoint, failure := request.CreateEndpoint(&queue)
		request.Complete(failure != nil)
		if failure != nil {
			_ = outside.Close()
			return
		}
		// A pod that is killed with its network namespace says no goodbye.
		endpoint.SocketOptions().SetKeepAlive(true)
		relay(gonet.NewTCPConn(&queue, endpoint), outside.(*net.TCPConn))
	})
}

type streamConn interface {
	net.Conn
	CloseWrite() error
}

// relay copies both ways, passes on the end of each direction, and returns when both have ended.
func relay(inside, outside streamConn) {
	defer inside.Close()
	defer outside.Close()
	var both sync.WaitGroup
	one := func(to, from streamConn) {
		if _, err := io.Copy(to, from); err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
		_ = to.CloseWrite()
	}
	both.Go(func() { one(inside, outside) })
	both.Go(func() { one(outside, inside) })
	both.Wait()
}

func forwardUDP(network *stack.Stack, refused prefixes) *udp.Forwarder {
	return udp.NewForwarder(network, func(request *udp.ForwarderRequest) {
		to, ok := refused.destination(request.ID())
		if !ok {
			return
		}
		var queue waiter.Queue
		endpoint, failure := request.CreateEndpoint(&queue)
		if failure != nil {
			log.Printf("UDP to %v: %v", to, failure)
			return
		}
		inside := gonet.NewUDPConn(&queue, endpoint)
		outside, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			_ = inside.Close()
			return
		}
		go datagrams(inside, outside)
		go datagrams(outside, inside)
	})
}

// datagrams copies one way until nothing has come for a while; then, or on an error, both ways end.
func datagrams(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 65535)
	for {
		if err := from.SetReadDeadline(time.Now().Add(idleDatagrams)); err != nil {
			return
		}
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
