// Package eviction is what the control plane needs of the kubelet's package of this name: one question about a
// pod. With the rest of it come the kubelet, cAdvisor and the clients of container runtimes.
package eviction

import v1 "k8s.io/api/core/v1"

// Reason is the reason reported back in status.
const Reason = "Evicted"

// PodIsEvicted returns true if the reported pod status is due to an eviction.
func PodIsEvicted(podStatus v1.PodStatus) bool {
	return podStatus.Phase == v1.PodFailed && podStatus.Reason == Reason
}
