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

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"trainyard/controlplane/outbound"
)

const (
	dialTimeout   = 15 * time.Second
	idleDatagrams = 60 * time.Second
	silence       = 60 * time.Second
	// What is more is refused by the counts; the forwarder itself would drop it silently, whosever it is.
	maxRequests = 65536
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

// destination returns where a pod's packet may be carried; nowhere that outbound forbids, and not back into the site.
func (p prefixes) destination(id stack.TransportEndpointID) (netip.AddrPort, bool) {
	address := netip.AddrFrom4(id.LocalAddress.As4())
	if !outbound.Permitted(address) {
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
func forwardTCP(network *stack.Stack, refused prefixes, known *namespaces) *tcp.Forwarder {
	dialing, carried := newFlows(dials, known), newFlows(streams, known)
	return tcp.NewForwarder(network, 0, maxRequests, func(request *tcp.ForwarderRequest) {
		to, ok := refused.destination(request.ID())
		pod := request.ID().RemoteAddress
		if !ok {
			request.Complete(true)
			return
		}
		endDial, mayDial := dialing.take(pod)
		end, may := carried.take(pod)
		defer end()
		if !mayDial || !may {
			endDial()
			request.Complete(true)
			return
		}
		outside, err := net.DialTimeout("tcp4", to.String(), dialTimeout)
		endDial()
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
		idle, interval := tcpip.KeepaliveIdleOption(silence), tcpip.KeepaliveIntervalOption(silence/4)
		_ = endpoint.SetSockOpt(&idle)
		_ = endpoint.SetSockOpt(&interval)
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

func forwardUDP(network *stack.Stack, refused prefixes, known *namespaces) *udp.Forwarder {
	carried := newFlows(datagramFlows, known)
	return udp.NewForwarder(network, func(request *udp.ForwarderRequest) {
		to, ok := refused.destination(request.ID())
		if !ok {
			return
		}
		end, may := carried.take(request.ID().RemoteAddress)
		if !may {
			return
		}
		var queue waiter.Queue
		endpoint, failure := request.CreateEndpoint(&queue)
		if failure != nil {
			end()
			log.Printf("UDP to %v: %v", to, failure)
			return
		}
		inside := gonet.NewUDPConn(&queue, endpoint)
		outside, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			end()
			_ = inside.Close()
			return
		}
		go func() {
			defer end()
			var both sync.WaitGroup
			both.Go(func() { datagrams(inside, outside) })
			both.Go(func() { datagrams(outside, inside) })
			both.Wait()
		}()
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
