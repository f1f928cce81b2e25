"""Fields of a pod that a local node does not support; a pod that sets one gets an Event."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from localkube.api_path import Object


@dataclass(frozen=True)
class FieldRule:
    """One unsupported field.

    Attributes:
        field: Its path below the PodSpec, or below a container.
        why: The behaviour instead, to follow "is not supported: ".
        asks: Whether a value of the field requests something; by default any but empty and false.
    """

    field: str
    why: str
    asks: Callable[[Any], bool] = bool


def _is_of(kind: str) -> Callable[[Object | None], bool]:
    """Check for a profile of a type; the type Localhost is refused elsewhere, as no node has one."""
    return lambda value: bool(value and value.get("type") == kind)


def _is_set(value: Any) -> bool:
    return value is not None


ONE_USER = "in plain mode every process is the cluster's user"
ONE_FILTER = "every container has the same filter of system calls"
NO_PROFILE = "no profile confines containers"

PROFILE_RULES = (
    FieldRule("securityContext.seLinuxOptions", NO_PROFILE),
    FieldRule("securityContext.seccompProfile", ONE_FILTER, _is_of("Unconfined")),
    FieldRule("securityContext.appArmorProfile", NO_PROFILE, _is_of("RuntimeDefault")),
)
POD_RULES = (
    FieldRule("hostUsers", "the pod has a user namespace of its own"),
    FieldRule(
        "resources.limits", "each container has its own limits; the pod's requests count for scheduling"
    ),
    *PROFILE_RULES,
)
CONTAINER_RULES = (
    *PROFILE_RULES,
    FieldRule(
        "securityContext.procMount", "/proc is an ordinary container's", lambda value: value == "Unmasked"
    ),
    FieldRule(
        "volumeMounts",
        "no later mount reaches a container, or comes out of one (mountPropagation)",
        lambda value: any(
            entry.get("mountPropagation") not in (None, "None", "HostToContainer") for entry in value or ()
        ),
    ),
)
UNCONFINED = FieldRule("securityContext.seccompProfile", NO_PROFILE, _is_of("RuntimeDefault"))
PRIVILEGES = "in plain mode a process has the rights of the cluster's user"
PLAIN_USER_RULES = (
    FieldRule("securityContext.runAsUser", ONE_USER, _is_set),
    FieldRule("securityContext.runAsGroup", ONE_USER, _is_set),
    FieldRule("securityContext.runAsNonRoot", ONE_USER),
)
# In plain mode: every container sees the processes of the whole machine, and its files.
PLAIN_POD_RULES = (
    *(rule for rule in POD_RULES if rule.field != "hostUsers"),
    UNCONFINED,
    FieldRule("dnsConfig", "names are resolved by the cluster alone"),
    FieldRule(
        "dnsPolicy",
        "names are resolved by the cluster",
        lambda value: value not in (None, "ClusterFirst", "ClusterFirstWithHostNet"),
    ),
    FieldRule("securityContext.sysctls", "the kernel's settings are the machine's"),
    *PLAIN_USER_RULES,
    FieldRule("securityContext.fsGroup", ONE_USER, _is_set),
    FieldRule("securityContext.supplementalGroups", ONE_USER),
    FieldRule(
        "volumes",
        "in plain mode a volume in memory is a directory on disk, and its sizeLimit is not a wall",
        lambda value: any((entry.get("emptyDir") or {}).get("medium") == "Memory" for entry in value or ()),
    ),
)
PLAIN_CONTAINER_RULES = (
    *CONTAINER_RULES,
    UNCONFINED,
    *PLAIN_USER_RULES,
    FieldRule("securityContext.privileged", PRIVILEGES),
    FieldRule("securityContext.capabilities.add", PRIVILEGES),
    FieldRule("securityContext.capabilities.drop", PRIVILEGES),
    FieldRule(
        "securityContext.readOnlyRootFilesystem",
        "in plain mode programs see this machine's files, with the rights of the cluster's user",
    ),
)


def unsupported_fields_in_plain_mode(pod: Object) -> list[str]:
    """Describe each unsupported field that the pod sets in plain mode, which isolates less."""
    return unsupported_fields(pod, pod_rules=PLAIN_POD_RULES, container_rules=PLAIN_CONTAINER_RULES)


def unsupported_fields(
    pod: Object,
    *,
    pod_rules: Iterable[FieldRule] = POD_RULES,
    container_rules: Iterable[FieldRule] = CONTAINER_RULES,
) -> list[str]:
    """Describe each unsupported field that the pod sets.

    Example:
        >>> unsupported_fields({"spec": {"hostUsers": True, "containers": []}})
        ['hostUsers is not supported: the pod has a user namespace of its own']
    """
    spec = pod["spec"]
    fields_by_reason: dict[str, list[str]] = {}
    for rule in pod_rules:
        if rule.asks(_at(spec, rule.field)):
            fields_by_reason.setdefault(rule.why, []).append(rule.field)
    container_rules = tuple(container_rules)
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or []:
            for rule in container_rules:
                if rule.asks(_at(container, rule.field)):
                    fields_by_reason.setdefault(rule.why, []).append(
                        f"{rule.field} of container {container['name']}"
                    )
    return [
        f"{', '.join(fields)} {'is' if len(fields) == 1 else 'are'} not supported: {why}"
        for why, fields in fields_by_reason.items()
    ]


def _at(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = (value or {}).get(key)
    return value
