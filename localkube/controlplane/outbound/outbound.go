// Package outbound decides to which addresses this machine connects for pods: as their gateway, and to pull their
// images. What a name resolves to is judged, never the name.
package outbound

import (
	"net/netip"
	"slices"
)

// metadata lists the services outside of the link-local range that hand out a cloud machine's credentials: those of
// Alibaba, Azure and Oracle's older regions, and those of AWS, Google and Scaleway for IPv6.
var metadata = []netip.Addr{
	netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192"),
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"), netip.MustParseAddr("fd00:42::42"),
}

// embedding lists the ranges of IPv6 whose addresses contain one of IPv4, and at which byte: NAT64, 6to4, and the
// deprecated IPv4-compatible and translated ones.
var embedding = map[netip.Prefix]int{
	netip.MustParsePrefix("64:ff9b::/96"): 12, netip.MustParsePrefix("2002::/16"): 2,
	netip.MustParsePrefix("::/96"): 12, netip.MustParsePrefix("::ffff:0:0:0/96"): 12,
}

// teredo and siteLocal are routed nowhere today.
var teredo, siteLocal = netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("fec0::/10")

// Permitted reports whether a pod may have this machine connect to an address: not to its loopback (0.0.0.0 is one
// of its names), not link-local, and not to a metadata service.
func Permitted(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	if !address.IsGlobalUnicast() || slices.Contains(metadata, address) {
		return false
	}
	if address.Is4() {
		return address.As4()[0] != 0 && !address.IsLoopback()
	}
	for prefix, at := range embedding {
		if prefix.Contains(address) {
			bytes := address.As16()
			return Permitted(netip.AddrFrom4([4]byte(bytes[at : at+4])))
		}
	}
	return !teredo.Contains(address) && !siteLocal.Contains(address)
}
