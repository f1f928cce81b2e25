// Fuzzing of the gateway's code that takes bytes from pods. `make fuzz` adds this file to its package by an overlay:
// beside its sources it would be part of what the control plane is built from.

package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

const own = "\x02\x00\x0a\xf4\xff\xfe"

// FuzzFrame sends a frame over the link of a whole stack, which forwards nothing.
func FuzzFrame(f *testing.F) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		f.Fatal(err)
	}
	mac, gateway := net.HardwareAddr(own), netip.MustParseAddr("10.244.255.254")
	network, err := newStack(settings{link: pair[0], mtu: 1500, mac: mac, address: gateway,
		subnet: netip.MustParsePrefix("10.244.0.0/16")}, make(chan string, 1))
	if err != nil {
		f.Fatal(err)
	}
	defer network.Close()
	arp := "\xff\xff\xff\xff\xff\xff\x02\x00\x0a\xf4\x01\x02\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01"
	f.Add([]byte(arp + "\x02\x00\x0a\xf4\x01\x02\x0a\xf4\x01\x02\x00\x00\x00\x00\x00\x00\x0a\xf4\xff\xfe"))
	ip := own + "\x02\x00\x0a\xf4\x01\x02\x08\x00\x45\x00\x00\x20\x00\x00\x00\x00\x40"
	f.Add([]byte(ip + "\x11\x00\x00\x0a\xf4\x01\x02\x01\x01\x01\x01\x10\x00\x00\x35\x00\x0c\x00\x00help"))
	f.Add([]byte(ip + "\x01\x00\x00\x0a\xf4\x01\x02\x0a\xf4\xff\xfe\x08\x00\x00\x00\x00\x00\x00\x00ping"))
	answers := make([]byte, 4096)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > 1514 { // the kernel lets no shorter frame into a veth
			return
		}
		for unix.Send(pair[1], frame, 0) == unix.EAGAIN {
			_, _ = unix.Read(pair[1], answers)
		}
		_, _ = unix.Read(pair[1], answers)
	})
}

// FuzzQuestion asks for addresses; no question leaves the process.
func FuzzQuestion(f *testing.F) {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("there is no name server")
	}}
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x09localhost\x00\x00\x01\x00\x01"))
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x1c\x00\x01"))
	f.Fuzz(func(t *testing.T, message []byte) {
		var parser dnsmessage.Parser
		if _, err := parser.Start(message); err == nil {
			question, err := parser.Question()
			if err == nil && question.Type != dnsmessage.TypeA && question.Type != dnsmessage.TypeAAAA {
				return // it would be passed on
			}
		}
		reply := answer(message, maxDatagram)
		if reply == nil {
			return
		}
		var parsed dnsmessage.Message
		if err := parsed.Unpack(reply); err != nil || len(reply) > maxDatagram || !parsed.Response {
			t.Fatalf("%v: %x", err, reply)
		}
	})
}

// FuzzPack packs as many addresses as a name may have.
func FuzzPack(f *testing.F) {
	f.Add("example.org.", uint16(3), uint16(512))
	f.Fuzz(func(t *testing.T, text string, count, limit uint16) {
		name, err := dnsmessage.NewName(text)
		if err != nil {
			return
		}
		question := dnsmessage.Question{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
		addresses := make([]netip.Addr, count%2000)
		for i := range addresses {
			addresses[i] = netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		}
		reply := pack(dnsmessage.Header{}, question, addresses, dnsmessage.RCodeSuccess, max(int(limit), maxDatagram))
		if len(reply) > max(int(limit), maxDatagram) {
			t.Fatalf("%d bytes", len(reply))
		}
	})
}
