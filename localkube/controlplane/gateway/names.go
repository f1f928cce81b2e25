package gateway

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	namePort    = 53
	nameTTL     = 30
	nameTimeout = 8 * time.Second
	maxDatagram = 512
)

// serveNames answers DNS at the gateway's address. Addresses of names come from the host's own resolver, which knows
// /etc/hosts and the search of its name servers; questions of other types go to those servers as they are.
func serveNames(network *stack.Stack, s settings, known *namespaces) error {
	at := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(s.address.As4()), Port: namePort}
	packets, err := gonet.DialUDP(network, &at, nil, ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	listener, err := gonet.ListenTCP(network, at, ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	go servePackets(packets, newAsking(s, known))
	go serveStreams(listener, newAsking(s, known))
	return nil
}

// asking counts questions that wait for an answer; the cluster's own DNS, which asks for all pods, has a count apart.
type asking struct {
	resolver tcpip.Address
	own      *flows
	pods     *flows
}

func newAsking(s settings, known *namespaces) asking {
	resolver := s.resolver.As4()
	return asking{tcpip.AddrFrom4(resolver), newFlows(ofResolver, known), newFlows(questions, known)}
}

func (a asking) take(from net.Addr) (func(), bool) {
	client, err := netip.ParseAddrPort(from.String())
	if err != nil || !client.Addr().Unmap().Is4() {
		return func() {}, false
	}
	address := tcpip.AddrFrom4(client.Addr().Unmap().As4())
	if address == a.resolver {
		return a.own.take(address)
	}
	return a.pods.take(address)
}

func servePackets(packets net.PacketConn, counted asking) {
	buffer := make([]byte, 4096)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			log.Println("DNS over UDP ended:", err)
			return
		}
		end, may := counted.take(from)
		if !may {
			continue // the client asks again
		}
		question := append([]byte(nil), buffer[:n]...)
		go func() {
			defer end()
			if reply := answer(question, maxDatagram); reply != nil {
				_, _ = packets.WriteTo(reply, from)
			}
		}()
	}
}

func serveStreams(listener net.Listener, counted asking) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Println("DNS over TCP ended:", err)
			return
		}
		end, may := counted.take(connection.RemoteAddr())
		if !may {
			_ = connection.Close()
			continue
		}
		go func() {
			defer end()
			serveStream(connection)
		}()
	}
}

func serveStream(connection net.Conn) {
	defer connection.Close()
	for {
		if err := connection.SetDeadline(time.Now().Add(2 * nameTimeout)); err != nil {
			return
		}
		question, err := readMessage(connection)
		if err != nil {
			return
		}
		reply := answer(question, 65535)
		if reply == nil || writeMessage(connection, reply) != nil {
			return
		}
	}
}

// answer returns the reply to a DNS message of at most limit bytes, or nil when there is nothing to say.
func answer(message []byte, limit int) []byte {
	var parser dnsmessage.Parser
	head, err := parser.Start(message)
	if err != nil || head.Response {
		return nil
	}
	question, err := parser.Question()
	if err != nil {
		return nil
	}
	switch question.Type {
	case dnsmessage.TypeA:
		addresses, code := lookup(question.Name.String())
		return pack(head, question, addresses, code, limit)
	case dnsmessage.TypeAAAA: // the site speaks IPv4 only
		return pack(head, question, nil, dnsmessage.RCodeSuccess, limit)
	}
	if reply, err := ask(message, limit); err == nil {
		return reply
	}
	return pack(head, question, nil, dnsmessage.RCodeServerFailure, limit)
}

func lookup(name string) ([]netip.Addr, dnsmessage.RCode) {
	// The resolver finds a name of one label in /etc/hosts only without the dot at its end.
	if bare := strings.TrimSuffix(name, "."); !strings.Contains(bare, ".") {
		name = bare
	}
	ctx, cancel := context.WithTimeout(context.Background(), nameTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", name)
	var failure *net.DNSError
	switch {
	case err == nil:
		return addresses, dnsmessage.RCodeSuccess
	case errors.As(err, &failure) && failure.IsNotFound:
		return nil, dnsmessage.RCodeNameError
	default:
		return nil, dnsmessage.RCodeServerFailure
	}
}

func pack(head dnsmessage.Header, question dnsmessage.Question, addresses []netip.Addr, code dnsmessage.RCode,
	limit int) []byte {
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{ID: head.ID, Response: true, RecursionDesired: head.RecursionDesired,
			RecursionAvailable: true, RCode: code},
		Questions: []dnsmessage.Question{question},
	}
	for _, address := range addresses {
		reply.Answers = append(reply.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: nameTTL},
			Body:   &dnsmessage.AResource{A: address.As4()},
		})
	}
	packed, err := reply.Pack()
	if err == nil && len(packed) > limit {
		reply.Answers, reply.Truncated = nil, true
		packed, err = reply.Pack()
	}
	if err != nil {
		log.Println("DNS reply:", err)
		return nil
	}
	return packed
}

// ask passes a message to the first of the host's name servers that answers.
func ask(message []byte, limit int) ([]byte, error) {
	transport := "udp"
	if limit > maxDatagram {
		transport = "tcp"
	}
	servers, err := nameServers("/etc/resolv.conf")
	for _, server := range servers {
		var reply []byte
		if reply, err = askOne(transport, server, message); err == nil {
			return reply, nil
		}
	}
	return nil, err
}

func askOne(transport, server string, message []byte) ([]byte, error) {
	connection, err := net.DialTimeout(transport, net.JoinHostPort(server, "53"), nameTimeout/2)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(nameTimeout / 2)); err != nil {
		return nil, err
	}
	if transport == "tcp" {
		if err := writeMessage(connection, message); err != nil {
			return nil, err
		}
		return readMessage(connection)
	}
	if _, err := connection.Write(message); err != nil {
		return nil, err
	}
	buffer := make([]byte, 4096)
	n, err := connection.Read(buffer)
	return buffer[:n], err
}

func nameServers(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var servers []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == "nameserver" {
			servers = append(servers, words[1])
		}
	}
	if len(servers) == 0 {
		return nil, errors.New("the host names no name server")
	}
	return servers, nil
}

// readMessage and writeMessage frame a DNS message as TCP does: its length in two bytes before it.
func readMessage(from io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(from, message)
	return message, err
}

func writeMessage(to io.Writer, message []byte) error {
	_, err := to.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
	return err
}
