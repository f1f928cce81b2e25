package gateway

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// ownFrames is a link that hides from the stack what is not the gateway's business. A promiscuous stack would
// answer ARP requests for every address of the bridge, take frames that the bridge floods, and reply to a ping
// of any address in the world.
type ownFrames struct {
	nested.Endpoint
	own tcpip.Address
}

func newOwnFrames(link stack.LinkEndpoint, own tcpip.Address) *ownFrames {
	o := &ownFrames{own: own}
	o.Init(link, o)
	return o
}

// DeliverNetworkPacket implements stack.NetworkDispatcher.
func (o *ownFrames) DeliverNetworkPacket(protocol tcpip.NetworkProtocolNumber, packet *stack.PacketBuffer) {
	destination := header.Ethernet(packet.LinkHeader().Slice()).DestinationAddress()
	switch protocol {
	case header.ARPProtocolNumber:
		if destination != o.LinkAddress() && destination != header.EthernetBroadcastAddress || !o.concerns(packet) {
			return
		}
	case header.IPv4ProtocolNumber:
		if destination != o.LinkAddress() || o.isForeignPing(packet) {
			return
		}
	default:
		return
	}
	o.Endpoint.DeliverNetworkPacket(protocol, packet)
}

func (o *ownFrames) concerns(packet *stack.PacketBuffer) bool {
	bytes, ok := packet.Data().PullUp(header.ARPSize)
	if !ok {
		return false
	}
	// The stack asks for a pod in the name of whoever answers it, so the reply is to a foreign address.
	isReply := header.ARP(bytes).Op() == header.ARPReply
	return isReply || tcpip.AddrFrom4Slice(header.ARP(bytes).ProtocolAddressTarget()) == o.own
}

func (o *ownFrames) isForeignPing(packet *stack.PacketBuffer) bool {
	bytes, ok := packet.Data().PullUp(header.IPv4MinimumSize)
	if !ok {
		return true
	}
	ip := header.IPv4(bytes)
	return ip.TransportProtocol() == header.ICMPv4ProtocolNumber && ip.DestinationAddress() != o.own
}
