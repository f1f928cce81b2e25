package gateway

import (
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Each flow costs descriptors and memory of the host. A pod may hold its share of them, and no more.
const (
	maxStreams, maxStreamsOfPod     = 8192, 2048
	maxDatagrams, maxDatagramsOfPod = 1024, 256
)

// flows counts what is carried at a time, in all and for each pod.
type flows struct {
	all, ofPod int // the most of each

	mutex sync.Mutex
	total int
	pods  map[tcpip.Address]int
}

func newFlows(all, ofPod int) *flows {
	return &flows{all: all, ofPod: ofPod, pods: map[tcpip.Address]int{}}
}

// take reports whether the pod may have one flow more; then give must follow when it has ended.
func (f *flows) take(pod tcpip.Address) bool {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.total >= f.all || f.pods[pod] >= f.ofPod {
		return false
	}
	f.total++
	f.pods[pod]++
	return true
}

func (f *flows) give(pod tcpip.Address) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.total--
	if f.pods[pod]--; f.pods[pod] == 0 {
		delete(f.pods, pod)
	}
}
