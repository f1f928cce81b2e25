package gateway

import (
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
)

// share is how much there is of something, and what of it a namespace and a pod may hold. Each costs descriptors and
// memory of the host.
type share struct{ all, ofNamespace, ofPod int }

var (
	streams       = share{8192, 2048, 2048}
	dials         = share{1024, 256, 128}
	datagramFlows = share{1024, 256, 256}
	questions     = share{128, 32, 16}   // and as many connections with questions
	ofResolver    = share{256, 256, 256} // of the cluster's own DNS, which is fair to its clients
)

const descriptors, reserved = 8192 + 1024 + 2*(128+256), 256

// flows counts what is carried at a time: in all, for each namespace, and for each pod.
type flows struct {
	most  share
	known *namespaces

	mutex      sync.Mutex
	total      int
	pods       map[tcpip.Address]int
	namespaces map[string]int
}

// newFlows makes a count, with less of all where the process may not open so many files.
func newFlows(most share, known *namespaces) *flows {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur < descriptors+reserved {
		room := max(int(files.Cur)-reserved, descriptors/64)
		for _, each := range []*int{&most.all, &most.ofNamespace, &most.ofPod} {
			*each = max(*each*room/descriptors, 1)
		}
	}
	return &flows{most: most, known: known, pods: map[tcpip.Address]int{}, namespaces: map[string]int{}}
}

// take reports whether the pod may have one more; what it returns is to be called once it has ended.
func (f *flows) take(pod tcpip.Address) (func(), bool) {
	namespace := f.known.of(pod)
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.total >= f.most.all || f.namespaces[namespace] >= f.most.ofNamespace || f.pods[pod] >= f.most.ofPod {
		return func() {}, false
	}
	f.total++
	f.pods[pod]++
	f.namespaces[namespace]++
	return func() {
		f.mutex.Lock()
		defer f.mutex.Unlock()
		f.total--
		decrement(f.pods, pod)
		decrement(f.namespaces, namespace)
	}, true
}

func decrement[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}
