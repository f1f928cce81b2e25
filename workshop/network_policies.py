"""Whether a cluster's network heeds NetworkPolicies: the API takes them either way, and says nothing. Pure.

Told by the DaemonSets of those network programs that do. A cluster that has none of them stores the policies.
"""

from collections.abc import Iterable

from kitlib.k8s.manifests import Object

# Amazon's agent is there on every cluster, and does it only when it is told to.
AMAZON, AMAZON_AGENT, AMAZON_WORD = "aws-node", "aws-eks-nodeagent", "--enable-network-policy=true"
ENFORCERS = {
    "calico-node": "Calico",
    "canal": "Calico",
    "cilium": "Cilium",
    "anetd": "Google's dataplane V2",
    "antrea-agent": "Antrea",
    "weave-net": "Weave Net",
    "kube-router": "kube-router",
    "ovnkube-node": "OVN-Kubernetes",
}


def enforcer(daemonsets: Iterable[Object]) -> str:
    """Return who heeds NetworkPolicies in a cluster; empty where nobody is known to.

    Args:
        daemonsets: All of the cluster.
    """
    for each in daemonsets:
        name = each["metadata"]["name"]
        if name in ENFORCERS:
            return ENFORCERS[name]
        if name == AMAZON and _switched_on(each):
            return "Amazon VPC CNI"
    return ""


def _switched_on(daemonset: Object) -> bool:
    containers = daemonset["spec"]["template"]["spec"]["containers"]
    return any(
        each["name"] == AMAZON_AGENT and AMAZON_WORD in (each.get("args") or []) for each in containers
    )
