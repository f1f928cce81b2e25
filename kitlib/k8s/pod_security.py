"""The security context of pods: they meet the Pod Security Standard ``restricted``, unless they run as root.

A pod whose manifest says itself that it runs as root, or with more rights, stays as it is.
https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitlib.errors import Rejected
from kitlib.k8s.api_path import group_path
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object, merge, rewrite, with_containers

USER = 65532  # "nonroot" in distroless images; unused on nodes
OPENSHIFT = (
    "security.openshift.io"  # whose namespaces choose the user of each pod, out of a range of their own
)
UID_MAX = 60_000  # the last that useradd gives: images may know it, and its home
# A later user is in no image's /etc/passwd: without these its home is / and Python's getpass fails.
ENVIRONMENT = ({"name": "HOME", "value": "/tmp"}, {"name": "USER", "value": "trainyard"})
RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True)
class PodSecurity:
    """The user of pods, and whether they have the rights of the standard ``restricted`` alone.

    Attributes:
        user: None where the namespace, or the cluster, chooses it.
    """

    user: int | None = USER
    restricted: bool = True

    @classmethod
    def of(cls, user: int | None) -> "PodSecurity":
        """Choose the context of pods that run as ``user``: 0 is root, None the kit's default."""
        return cls(USER if user is None else user, restricted=user != 0)

    @classmethod
    def read(cls, kube: Kube, user: int | None) -> "PodSecurity":
        """Choose the context of pods in a cluster: on OpenShift without a user, which it assigns."""
        if user is None and serves(kube, OPENSHIFT):
            return cls(None)
        return cls.of(user)

    @property
    def environment(self) -> list[dict[str, str]]:
        """The variables of a user that no image knows."""
        known = self.user is not None and self.user <= UID_MAX
        return [*ENVIRONMENT] if self.restricted and not known else []

    def apply(self, item: Mapping[str, Any]) -> Object:
        """Add the context to all pod specs in an object; fields that the object sets stay."""
        return rewrite(item, self._secure)

    def _secure(self, spec: Object) -> Object:
        if not isinstance(spec.get("containers"), list) or (self.restricted and _needs_root(spec)):
            return spec
        fields: Object = {} if self.user is None else {"runAsUser": self.user}
        if self.restricted:
            group = {"fsGroup": self.user, "fsGroupChangePolicy": "OnRootMismatch"}
            fields = RESTRICTED_POD | fields | (group if fields else {})
        if not fields:
            return spec
        secured = with_containers(spec, self._container) if self.restricted else spec
        return secured | {"securityContext": merge(fields, spec.get("securityContext") or {})}

    def _container(self, container: Object) -> Object:
        context = merge(RESTRICTED_CONTAINER, container.get("securityContext") or {})
        named = {variable["name"] for variable in container.get("env") or []}
        environment = [variable for variable in self.environment if variable["name"] not in named]
        # A patch of somebody else's container, as a TrainJob has, sets no variables.
        env = (
            {"env": [*(container.get("env") or []), *environment]}
            if "image" in container and environment
            else {}
        )
        return container | env | {"securityContext": context}


def serves(kube: Kube, group: str) -> bool:
    """Check whether the API serves a group; every authenticated user may ask."""
    try:
        groups = kube.raw(group_path()).get("groups") or []
    except Rejected:
        return False
    return any(item["name"] == group for item in groups)


def _needs_root(spec: Mapping[str, Any]) -> bool:
    """Check whether a spec says that the pod runs as root, or with more rights than a restricted one has."""
    containers: Sequence[Object] = [*(spec.get("initContainers") or []), *spec["containers"]]
    contexts = [item.get("securityContext") or {} for item in (spec, *containers)]
    reasons = (
        context.get("runAsUser") == 0
        or context.get("privileged")
        or context.get("allowPrivilegeEscalation")
        or (context.get("capabilities") or {}).get("add")
        for context in contexts
    )
    return any(map(bool, reasons)) or any(spec.get(field) for field in ("hostNetwork", "hostPID", "hostIPC"))
