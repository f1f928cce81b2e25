// Package gateway gives the pods of a site their way out to the world without any privilege on the host.
//
// It is a user-mode network: frames of the site's bridge arrive on an inherited packet socket, a TCP/IP stack in
// this process ends their connections, and ordinary sockets of the host's network carry them on. Nothing listens on
// the host. gVisor's stack is used directly and not through gvisor-tap-vsock: the gateway shares its link with the
// pods' bridge (so it must stay silent about addresses that are not its own), it must refuse some destinations, and
// the compiler has a quarter of the packages to read.
package gateway

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

const nic tcpip.NICID = 1

type settings struct {
	link    int
	mtu     uint
	subnet  netip.Prefix
	address netip.Addr
	mac     net.HardwareAddr
	refused prefixes
	// pods is the file with the pods' namespaces; resolver is the cluster's own DNS.
	pods     string
	resolver netip.Addr
}

// Main runs the gateway until the link, the parent process or standard input is gone.
func Main() {
	log.SetPrefix("gateway: ")
	log.SetFlags(log.LstdFlags | log.Lmsgprefix)
	chosen, err := parse(os.Args[1:])
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(0)
		}
		log.Println(err)
		os.Exit(2)
	}
	if err := serve(chosen); err != nil {
		log.Fatal(err)
	}
}

func parse(arguments []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	flags.IntVar(&s.link, "packet-fd", -1, "inherited descriptor that reads and writes one Ethernet frame at a time")
	flags.UintVar(&s.mtu, "mtu", 1500, "largest packet in bytes")
	flags.TextVar(&s.subnet, "subnet", netip.MustParsePrefix("10.244.0.0/16"), "the pods' addresses")
	flags.TextVar(&s.address, "address", netip.MustParseAddr("10.244.255.254"), "the gateway's own address, also of its DNS")
	flags.Func("mac", "the gateway's hardware address", func(text string) (err error) {
		s.mac, err = net.ParseMAC(text)
		return err
	})
	flags.Var(&s.refused, "refuse", "destinations to refuse, as a prefix; may be repeated")
	flags.StringVar(&s.pods, "pods", "", "file with the address and the namespace of each pod")
	flags.TextVar(&s.resolver, "resolver", netip.MustParseAddr("10.244.0.1"), "address of the cluster's own DNS server")
	if err := flags.Parse(arguments); err != nil {
		return s, err
	}
	if s.mac == nil {
		s.mac = net.HardwareAddr{0x0a, 0x58, 0x0a, 0xf4, 0xff, 0xfe}
	}
	switch {
	case s.link < 0:
		return s, errors.New("--packet-fd is required")
	case !s.address.Is4() || !s.subnet.Contains(s.address):
		return s, fmt.Errorf("--address %v must be an IPv4 address of --subnet %v", s.address, s.subnet)
	case s.mtu < 576 || s.mtu > 65535:
		return s, fmt.Errorf("--mtu %d is not between 576 and 65535", s.mtu)
	}
	s.refused = append(s.refused, s.subnet)
	return s, nil
}

func serve(s settings) error {
	if err := dieWithParent(); err != nil {
		return err
	}
	ended := make(chan string, 2)
	go watch(os.Stdin, ended)
	network, err := newStack(s, ended)
	if err != nil {
		return err
	}
	known := &namespaces{path: s.pods}
	network.SetTransportProtocolHandler(tcp.ProtocolNumber, forwardTCP(network, s.refused, known).HandlePacket)
	network.SetTransportProtocolHandler(udp.ProtocolNumber, forwardUDP(network, s.refused, known).HandlePacket)
	if err := serveNames(network, s, known); err != nil {
		return fmt.Errorf("DNS on %v: %w", s.address, err)
	}
	log.Printf("ready: %v for %v", s.address, s.subnet)
	log.Println("ended:", <-ended)
	return nil
}

// dieWithParent asks the kernel for a SIGKILL when the parent dies, and notices a parent that died before.
func dieWithParent() error {
	parent := os.Getppid()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_PDEATHSIG: %w", err)
	}
	if os.Getppid() != parent {
		return errors.New("the parent process has died")
	}
	return nil
}

// watch reports the end of the pipe that the parent holds open. The packet socket keeps the site's network alive, so
// without this a gateway could outlive its site.
func watch(lifeline io.Reader, ended chan<- string) {
	_, _ = io.Copy(io.Discard, lifeline)
	ended <- "standard input was closed"
}

func newStack(s settings, ended chan<- string) (*stack.Stack, error) {
	link, err := fdbased.New(&fdbased.Options{
		FDs:            []int{s.link},
		MTU:            uint32(s.mtu),
		EthernetHeader: true,
		Address:        tcpip.LinkAddress(s.mac),
		ClosedFunc:     func(err tcpip.Error) { ended <- "the link is gone: " + err.String() },
		// Frames that never left this machine carry unfinished checksums.
		RXChecksumOffload: true,
		// One goroutine keeps the order of frames, and a laptop's pods need no more.
		ProcessorsPerChannel: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("link descriptor %d: %w", s.link, err)
	}
	network := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	own := tcpip.AddrFrom4(s.address.As4())
	if err := network.CreateNIC(nic, newOwnFrames(link, own)); err != nil {
		return nil, errors.New(err.String())
	}
	address := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: own.WithPrefix()}
	if err := network.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
		return nil, errors.New(err.String())
	}
	// Accept packets for any destination, and answer in its name.
	network.SetPromiscuousMode(nic, true)
	network.SetSpoofing(nic, true)
	pods, err := tcpip.NewSubnet(tcpip.AddrFrom4(s.subnet.Masked().Addr().As4()),
		tcpip.MaskFromBytes(net.CIDRMask(s.subnet.Bits(), 32)))
	if err != nil {
		return nil, err
	}
	network.SetRouteTable([]tcpip.Route{{Destination: pods, NIC: nic}})
	sack := tcpip.TCPSACKEnabled(true)
	network.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)
	return network, nil
}
