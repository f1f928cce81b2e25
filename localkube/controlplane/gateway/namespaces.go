package gateway

import (
	"bufio"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

const lookEvery = 50 * time.Millisecond

// namespaces knows the Kubernetes namespace of each pod's address, from a file that the kubelet replaces before a pod
// starts: a line has an address and a namespace.
type namespaces struct {
	path string

	mutex  sync.Mutex
	looked time.Time
	seen   os.FileInfo
	pods   map[tcpip.Address]string
}

// of returns the namespace of an address; one that is not in the file counts as a namespace of its own.
func (n *namespaces) of(pod tcpip.Address) string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if now := time.Now(); n.path != "" && now.Sub(n.looked) > lookEvery {
		n.looked = now
		n.read()
	}
	if found, ok := n.pods[pod]; ok {
		return found
	}
	return pod.String()
}

func (n *namespaces) read() {
	file, err := os.Open(n.path)
	if err != nil {
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || n.seen != nil && os.SameFile(info, n.seen) && info.ModTime().Equal(n.seen.ModTime()) {
		return
	}
	n.seen, n.pods = info, map[tcpip.Address]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		text, namespace, _ := strings.Cut(lines.Text(), " ")
		if address, err := netip.ParseAddr(text); err == nil && address.Is4() {
			n.pods[tcpip.AddrFrom4(address.As4())] = namespace
		}
	}
}
