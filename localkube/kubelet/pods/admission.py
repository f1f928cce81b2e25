"""Admission of a pod by the node that it is bound to; a rejected pod fails at once.

The scheduler has looked at most of this, but pods can be bound by hand, and two of them at the same moment.

Source: pkg/kubelet/lifecycle (predicate.go, handlers.go) and pkg/kubelet/sysctl of Kubernetes 1.37
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from localkube.api_path import Object
from localkube.kubelet.containers.security_context import effective
from localkube.kubelet.status.container_state import EPHEMERAL, containers
from localkube.kubelet.status.restart_policy import is_sidecar
from localkube.network.network_policy import meets

# Each is of a network or IPC namespace, and without influence on other pods.
SAFE_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_notsent_lowat",
        "net.ipv4.tcp_slow_start_after_idle",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
EVERY_ADDRESS = {"", "0.0.0.0", "::"}
Refusal = tuple[str, str]


def refusal(
    pod: Object, *, other_pods: Iterable[Object], node: Object | None, shortage: str | None
) -> Refusal | None:
    """Explain why a node does not admit a pod, by reason and message; None if it does.

    Args:
        shortage: Why the node cannot give what the pod requests (``Allocations.shortage``).
    """
    if forbidden := _forbidden_sysctl(pod):
        return forbidden
    if (pod["spec"].get("os") or {}).get("name", "linux") != "linux":
        return "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"
    if _wants_apparmor(pod):
        return "AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"
    if shortage:
        resource = shortage.partition("resource: ")[2].partition(",")[0]
        return f"OutOf{resource}", shortage
    if any(
        port[1:] == port_in_use[1:]
        and (port[0] == port_in_use[0] or {port[0], port_in_use[0]} & EVERY_ADDRESS)
        for port in _host_ports(pod)
        for running in other_pods
        for port_in_use in _host_ports(running)
    ):
        return _failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    if node and not fits(pod, node):
        return _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if node and not all(map(pod_tolerates(pod), (node.get("spec") or {}).get("taints") or [])):
        return _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")
    return None


def pod_tolerates(pod: Object) -> Callable[[Object], bool]:
    """Build a check of whether the pod tolerates a taint; only NoExecute is the kubelet's concern."""
    tolerations = pod["spec"].get("tolerations") or []

    def tolerated(taint: Object) -> bool:
        return taint["effect"] != "NoExecute" or any(
            toleration.get("effect") in (None, "", taint["effect"])
            and toleration.get("key") in (None, "", taint["key"])
            and (
                toleration.get("operator") == "Exists"
                or (
                    toleration.get("operator") in (None, "", "Equal")
                    and (toleration.get("value") or "") == (taint.get("value") or "")
                    and bool(toleration.get("key"))
                )
            )
            for toleration in tolerations
        )

    return tolerated


def fits(pod: Object, node: Object) -> bool:
    """Check a node against the pod's ``nodeSelector`` and required node affinity."""
    spec, metadata = pod["spec"], node.get("metadata") or {}
    labels, fields = metadata.get("labels") or {}, {"metadata.name": metadata.get("name", "")}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = (affinity or {}).get("nodeSelectorTerms") or []
    return affinity is None or any(_matches_term(term, labels, fields) for term in terms)


def sysctls(pod: Object) -> dict[str, str]:
    """Collect the kernel's parameters that a pod sets, by their names with dots.

    Example:
        >>> entries = [{"name": "net/ipv4/tcp_rmem", "value": "1 2 3"}]
        >>> sysctls({"spec": {"securityContext": {"sysctls": entries}}})
        {'net.ipv4.tcp_rmem': '1 2 3'}
    """
    requested = (pod["spec"].get("securityContext") or {}).get("sysctls") or []
    return {_normalized(entry["name"]): entry["value"] for entry in requested}


def _normalized(name: str) -> str:
    """Exchange slashes and dots where the first of them is a slash, as sysctl(8) does."""
    first = next((letter for letter in name if letter in "./"), ".")
    return name if first == "." else name.translate(str.maketrans("./", "/."))


def _forbidden_sysctl(pod: Object) -> Refusal | None:
    for name in sysctls(pod):
        space = "ipc" if name.startswith("kernel.") else "net"
        shared = pod["spec"].get({"ipc": "hostIPC", "net": "hostNetwork"}[space])
        if name not in SAFE_SYSCTLS:
            return "SysctlForbidden", f'forbidden sysctl: "{name}" not allowlisted'
        if shared:
            return "SysctlForbidden", f'forbidden sysctl: "{name}" not allowed with host {space} enabled'
    return None


def _wants_apparmor(pod: Object) -> bool:
    """Check whether a profile has to confine a container, which no local node can do."""
    profiles = (effective(pod, container, "appArmorProfile") for _, container in containers(pod))
    return any(profile and profile["type"] != "Unconfined" for profile in profiles)


def _host_ports(pod: Object) -> Iterator[tuple[str, str, int]]:
    for kind, container in containers(pod):
        if kind != EPHEMERAL and (kind == "containers" or is_sidecar(container)):
            for port in container.get("ports") or []:
                if port.get("hostPort"):
                    yield port.get("hostIP") or "", port.get("protocol") or "TCP", port["hostPort"]


def _matches_term(term: Object, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    expressions = [(expression, labels) for expression in term.get("matchExpressions") or []]
    expressions += [(field, fields) for field in term.get("matchFields") or []]
    return bool(expressions) and all(
        _matches_expression(expression, values) for expression, values in expressions
    )


def _matches_expression(expression: Object, values: Mapping[str, str]) -> bool:
    value, expected = values.get(expression["key"]), expression.get("values") or []
    operator = expression["operator"]
    if operator in ("Gt", "Lt") and value is not None and value.lstrip("-").isdigit():
        return int(value) > int(expected[0]) if operator == "Gt" else int(value) < int(expected[0])
    return meets(expression, values)


def _failed(predicate: str, message: str) -> Refusal:
    return predicate, f"Predicate {predicate} failed: {message}"
