"""The user, groups and capabilities of a container, from its security context and its image. Pure.

The rules are those of the kubelet and containerd:
https://kubernetes.io/docs/tasks/configure-pod-container/security-context/
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from localkube.kubelet.containers.expansion import ConfigError
from localkube.runtime.container_spec import UserSpec
from localkube.runtime.syscalls import CAPABILITIES, DEFAULT_CAPABILITIES

Read = Callable[[str], str | None]
# The API's ids end there; the kernel's have 32 bits.
ID_DIGITS, END_OF_IDS = 10, 1 << 31
SECCOMP_PROFILES = "/var/lib/kubelet/seccomp"  # where a node has profiles of the type Localhost


def effective(pod: Mapping[str, Any], container: Mapping[str, Any], field: str) -> Any:
    """Get a field of the container's security context, or else of the pod's."""
    own = (container.get("securityContext") or {}).get(field)
    return own if own is not None else (pod["spec"].get("securityContext") or {}).get(field)


def user(pod: Mapping[str, Any], container: Mapping[str, Any], *, image_user: str, read: Read) -> UserSpec:
    """Compute the ids of a container's processes.

    Args:
        image_user: As in ``1000:100`` or ``nginx``; empty for root.
        read: Reads a file of the image.
    """
    requested, group = effective(pod, container, "runAsUser"), effective(pod, container, "runAsGroup")
    name, _, image_group = ("", "", "") if requested is not None else image_user.partition(":")
    refuse_root(pod, container, image_user=image_user)
    uid, own_gid, login = _find_user(requested, name, read)
    if group is None:
        group = _find_group(image_group, read) if image_group else own_gid
    context = pod["spec"].get("securityContext") or {}
    additional = {*(context.get("supplementalGroups") or ())}
    if context.get("fsGroup") is not None:
        additional.add(context["fsGroup"])
    if login and context.get("supplementalGroupsPolicy") != "Strict":
        entries = _entries(read("/etc/group"), 4)
        additional |= {int(gid) for _, _, gid, members in entries if login in members.split(",")}
    return UserSpec(uid, group, tuple(sorted({group, *additional})))


def refuse_root(pod: Mapping[str, Any], container: Mapping[str, Any], *, image_user: str) -> None:
    """Refuse a container with runAsNonRoot that would run as root.

    Raises:
        ConfigError: With the kubelet's message.
    """
    if not effective(pod, container, "runAsNonRoot"):
        return
    requested, name = effective(pod, container, "runAsUser"), image_user.partition(":")[0]
    meta = pod["metadata"]
    where = f'(pod: "{meta["name"]}_{meta["namespace"]}({meta["uid"]})", container: {container["name"]})'
    if requested == 0:
        raise ConfigError(f"container's runAsUser breaks non-root policy {where}")
    if requested is None and name and not _is_id(name):
        raise ConfigError(
            f"container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is "
            f"non-root {where}"
        )
    if requested is None and int(name or 0) == 0:
        raise ConfigError(f"container has runAsNonRoot and image will run as root {where}")


def refuse_profiles(pod: Mapping[str, Any], container: Mapping[str, Any]) -> None:
    """Refuse profiles of the type Localhost, of seccomp and AppArmor: a local node has none.

    Raises:
        ConfigError: With containerd's message.
    """
    seccomp = effective(pod, container, "seccompProfile") or {}
    armor = effective(pod, container, "appArmorProfile") or {}
    privileged = (container.get("securityContext") or {}).get("privileged")
    if armor.get("type") == "Localhost":
        message = (
            f"failed to generate apparmor spec opts: apparmor profile not found {armor['localhostProfile']}"
        )
        raise ConfigError(f"failed to get container spec opts: {message}", reason="CreateContainerError")
    if seccomp.get("type") == "Localhost" and not privileged:
        path = f"{SECCOMP_PROFILES}/{seccomp['localhostProfile']}"
        message = f'cannot load seccomp profile "{path}": open {path}: no such file or directory'
        raise ConfigError(f"failed to create containerd container: {message}", reason="CreateContainerError")


def refuse_foreign_ids(ids: Iterable[int | None], *, size: int) -> None:
    """Refuse users and groups that a pod's user namespace does not have.

    Args:
        size: The ids of the namespace; a single id has the number of the container's user.

    Raises:
        ConfigError: One is outside, and would be another pod's or the machine's; or has more than 31 bits.
    """
    end = size if size > 1 else END_OF_IDS
    foreign = [number for number in ids if number is not None and not 0 <= number < end]
    if foreign:
        raise ConfigError(
            f"user or group {foreign[0]} is not one of the {end} ids of the pod's user namespace: "
            f"set runAsUser, runAsGroup, fsGroup and supplementalGroups (or the image's USER) below {end}"
        )


def home_directory(uid: int, read: Read) -> str:
    """Find the home directory of a user in its image, as the container runtime sets HOME."""
    return next((entry[5] for entry in _entries(read("/etc/passwd"), 7) if entry[2] == str(uid)), "") or "/"


def _find_user(requested: int | None, name: str, read: Read) -> tuple[int, int, str]:
    """Return the uid, its gid in the image's passwd file, and its login name."""
    number = requested if requested is not None else int(name or 0) if _is_id(name or "0") else None
    for login, _, uid, gid, *_ in _entries(read("/etc/passwd"), 7):
        if (uid == str(number)) if number is not None else (login == name):
            return int(uid), int(gid), login
    if number is None:
        raise ConfigError(
            f"unable to find user {name}: no matching entries in passwd file", reason="CreateContainerError"
        )
    return number, 0, ""


def _find_group(name: str, read: Read) -> int:
    if _is_id(name):
        return int(name)
    for group, _, gid, _ in _entries(read("/etc/group"), 4):
        if group == name:
            return int(gid)
    raise ConfigError(
        f"unable to find group {name}: no matching entries in group file", reason="CreateContainerError"
    )


def _entries(text: str | None, fields: int) -> Iterable[list[str]]:
    """Yield the well-formed lines of ``/etc/passwd`` or ``/etc/group``."""
    for line in (text or "").splitlines():
        entry = line.split(":")
        if len(entry) == fields and all(map(_is_id, entry[2 : 4 if fields == 7 else 3])):
            yield entry


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= ID_DIGITS


def capabilities(container: Mapping[str, Any]) -> tuple[str, ...]:
    """Compute the capabilities of a container, within its user namespace."""
    context = container.get("securityContext") or {}
    if context.get("privileged"):
        return tuple(CAPABILITIES)
    changes = context.get("capabilities") or {}
    add, drop = (_named(changes.get(change) or ()) for change in ("add", "drop"))
    names = set(CAPABILITIES) if "CAP_ALL" in add else set(DEFAULT_CAPABILITIES)
    if "CAP_ALL" in drop:
        names = set()
    names = (names | (add & set(CAPABILITIES))) - (drop - add if "CAP_ALL" in drop else drop)
    return tuple(name for name in CAPABILITIES if name in names)


def _named(names: Iterable[str]) -> set[str]:
    return {name if name.startswith("CAP_") else f"CAP_{name}" for name in map(str.upper, names)}


def no_new_privileges(container: Mapping[str, Any]) -> bool:
    """Check whether executing programs of the image must not grant privileges."""
    context = container.get("securityContext") or {}
    return context.get("allowPrivilegeEscalation") is False and not context.get("privileged")
