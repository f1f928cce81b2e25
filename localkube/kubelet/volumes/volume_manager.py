"""The volumes of pods: prepared before the containers start, updated, and removed.

Every volume is a directory (or file) on the host that is bind-mounted into the containers. An emptyDir in
memory is a tmpfs. ``sizeLimit`` is enforced for memory only. Files belong to the root of the containers,
those of a volume that pods may share by an idmapped mount, and to the pod's ``fsGroup``.

Source: https://kubernetes.io/docs/concepts/storage/volumes/
"""

import asyncio
import contextlib
import functools
import itertools
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localkube.api_path import Object
from localkube.errors import ApiError
from localkube.kubelet.containers.expansion import ConfigError, subpath
from localkube.kubelet.containers.pod_ids import PodIds
from localkube.kubelet.containers.security_context import effective, refuse_foreign_ids
from localkube.kubelet.images.image_manager import ImageManager
from localkube.kubelet.quantity import whole
from localkube.kubelet.status.container_state import containers
from localkube.kubelet.volumes import host_path, projected
from localkube.kubelet.volumes.certificates import PodCredentials
from localkube.kubelet.volumes.host_path import HiddenDirectories
from localkube.kubelet.volumes.node_directory import NodeDirectory
from localkube.kubelet.volumes.object_cache import ROOT_CA, Access, ObjectCache
from localkube.kubelet.volumes.persistent_volume import ClaimResolver, set_group
from localkube.kubelet.volumes.volume_shares import DISK, MEMORY, VolumeShares, size_of
from localkube.kubelet.work_pools import OBJECTS, TEXTS, WALKS
from localkube.runtime import syscalls
from localkube.runtime.container_spec import MountSpec
from localkube.runtime.path_resolution import Identity, Resolution, opened
from localkube.runtime.trees import removal, remove_tree

KEPT_FRESH = ("configMap", "secret", "downwardAPI", "projected")
PUBLIC = {"configMap", "downwardAPI", "clusterTrustBundle"}
# Bytes of a pod's files above which they are written in a thread.
LARGE = 1 << 18
BATCH = 4  # requests for one pod's objects
FEW = 256  # files that are computed at once


@dataclass(frozen=True)
class MountedVolume:
    """A volume that is ready.

    The content of a ``managed`` volume comes from the API, so nothing is created in it. A ``foreign`` one may
    be any directory of this machine, in which the clusters' own directory is hidden. ``owner`` is the id of
    the containers' root on the disk; with ``idmap`` it is shifted by the mount. An image has ``layers``, the
    lowest first, in the directory ``source``. With ``subpaths``, the volume is what is there beneath it.
    """

    source: Path
    read_only: bool = False
    managed: bool = False
    foreign: bool = False
    owner: int = 0
    idmap: bool = False
    layers: tuple[str, ...] = ()
    subpaths: tuple[str, ...] = ()


class VolumeError(Exception):
    """A volume is not ready, or cannot be mounted; a later attempt may succeed.

    ``reason`` is that of the Event (``FailedMount``) or of the waiting container
    (``CreateContainerConfigError``).
    """

    def __init__(self, message: str, *, reason: str = "FailedMount") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class VolumeManager:
    """The volumes of all pods.

    Args:
        access: Returns a node's client of the API.
        tmpfs: The same in memory, for Secrets and tokens.
        claimed: The directory of the volumes that this cluster made for claims.
        node_directories: A directory for each node, its /var/lib/kubelet.
        hidden: Directories that no volume may show.
        allocatable: Returns a node's allocatable resources, by its name; for downward API files.
        objects: The cache of ConfigMaps and Secrets, shared with other readers.
        images: The source of image volumes; None if they are not supported.
        shares: The namespaces' shares of the space for files from the API.
        mount: Called as ``syscalls.mount``; None if nothing can be mounted, as in plain mode.
    """

    def __init__(
        self,
        access: Access,
        *,
        pods: Path,
        tmpfs: Path | None = None,
        claimed: Path | None = None,
        node_directories: Path = Path("/nonexistent"),  # noqa: B008
        hidden: HiddenDirectories | None = None,
        allocatable: Callable[[str], Mapping[str, str]] = lambda node: {},
        objects: ObjectCache | None = None,
        ids: PodIds | None = None,
        images: ImageManager | None = None,
        shares: VolumeShares | None = None,
        mount: Callable[..., None] | None = syscalls.mount,
    ) -> None:
        self._pods = pods
        self._tmpfs = tmpfs or pods
        self._claimed, self._hidden = claimed, hidden or HiddenDirectories()
        self._node_directories = node_directories
        self._allocatable = allocatable
        self._objects = objects or ObjectCache(access)
        self._credentials = PodCredentials(access)
        self.claims = ClaimResolver(access, provisioned=claimed)
        self._ids, self._images = ids or PodIds(), images
        self.shares = shares or VolumeShares()
        self._mount = mount

    async def prepare(self, pod: Object) -> dict[str, MountedVolume]:
        """Prepare all volumes of the pod, and return them by name. Safe to repeat.

        Raises VolumeError for the first volume that is not ready.
        """
        specs = pod["spec"].get("volumes") or []
        if not specs:
            return {}
        fresh = [spec for spec in specs if _kind(spec) in KEPT_FRESH]
        async with OBJECTS.turn() if _names_objects(fresh) else contextlib.nullcontext():
            files = await self._count(pod, fresh)
            ready = await self._make_all(pod, fresh, files)
        return ready | await self._make_all(pod, [spec for spec in specs if spec not in fresh], {})

    async def _make_all(
        self, pod: Object, specs: Sequence[Object], files: Mapping[str, projected.Files]
    ) -> dict[str, MountedVolume]:
        making = (self._guarded(spec, self._make(pod, spec, files.get(spec["name"], {}))) for spec in specs)
        return dict(zip((spec["name"] for spec in specs), await asyncio.gather(*making), strict=True))

    async def _count(self, pod: Object, specs: Sequence[Object]) -> dict[str, projected.Files]:
        """Compute the files of volumes from the API, and reserve their space before any is written."""
        known = projected.PodPayload()
        contents = await _gather_in_batches(
            self._guarded(spec, self._files(pod, spec, known)) for spec in specs
        )
        files = {spec["name"]: content for spec, content in zip(specs, contents, strict=True)}
        sizes = {
            spec["name"]: (MEMORY if _is_secret(spec) else DISK, size_of(files[spec["name"]]))
            for spec in specs
        }
        try:
            self.shares.reserve(pod["metadata"]["uid"], sizes, namespace=pod["metadata"]["namespace"])
        except ConfigError as error:
            largest = max(specs, key=lambda spec: sizes[spec["name"]][1])
            raise _failed(largest, str(error)) from error
        return files

    async def refresh(self, pod: Object) -> bool:
        """Update files that come from the API, and renew tokens; return whether any file changed.

        Raises VolumeError if an object is missing or the API does not respond; the files are unchanged.
        """
        specs = [spec for spec in pod["spec"].get("volumes") or [] if _kind(spec) in KEPT_FRESH]
        async with OBJECTS.turn() if _names_objects(specs) else contextlib.nullcontext():
            files = await self._count(pod, specs)
            changed = [
                await self._guarded(spec, self._write(pod, spec, files.pop(spec["name"]))) for spec in specs
            ]
        return any(changed)

    async def release(self, pod: Object) -> None:
        """Remove a terminated pod's files from the API, and release their space."""
        uid = pod["metadata"]["uid"]
        for spec in [spec for spec in pod["spec"].get("volumes") or [] if _kind(spec) in KEPT_FRESH]:
            if self.shares.of_pod(uid) > LARGE:
                await WALKS.walk(removal(self._directory(pod, spec)))
            else:
                remove_tree(self._directory(pod, spec))
        self._credentials.forget(uid)
        self.shares.forget(uid)

    async def remove(self, uid: str) -> None:
        """Delete the pod's volumes, except those of claims and of the host. Safe to repeat."""
        self.forget(uid)
        removals = (removal(root / uid / "volumes") for root in (self._pods, self._tmpfs))
        await WALKS.walk(itertools.chain(self.unmounting(uid), *removals))

    def forget(self, uid: str) -> None:
        """Forget a pod whose files the caller removes."""
        self._credentials.forget(uid)
        self.shares.forget(uid)
        self.claims.forget(uid)

    def unmounting(self, uid: str) -> Iterator[None]:
        """Unmount the pod's volumes, one by one."""
        for volume in (self._pods / uid / "volumes").glob("*"):
            if volume.is_mount():
                syscalls.unmount(os.fspath(volume))
            yield

    async def _guarded(self, spec: Object, work: Any) -> Any:
        try:
            return await work
        except OSError as error:
            problem = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            raise _failed(spec, problem) from error
        except ApiError as error:
            raise _failed(spec, error.message) from error
        except ConfigError as error:
            raise _failed(spec, str(error)) from error

    async def _make(self, pod: Object, spec: Object, files: projected.Files) -> MountedVolume:
        kind = _kind(spec)
        refuse_foreign_ids((_fs_group(pod), _only_user(pod)), size=self._ids.size)
        if kind in KEPT_FRESH:
            await self._write(pod, spec, files)
            return MountedVolume(self._directory(pod, spec), read_only=True, managed=True)
        if kind == "emptyDir":
            return self._empty_dir(pod, spec)
        if kind == "hostPath":
            path, kind = spec["hostPath"]["path"], spec["hostPath"].get("type") or ""
            node = NodeDirectory(self._node_directories / pod["spec"].get("nodeName", ""))
            if own := node.resolve(path):
                node.create()
                root, below = own
                host_path.check(below, kind, beneath=root)
                return MountedVolume(root, subpaths=(below,), idmap=self._ids.idmap)
            host_path.check(path, kind, hidden=self._hidden)
            return MountedVolume(Path(path), foreign=True, idmap=self._ids.idmap)
        if kind in ("persistentVolumeClaim", "ephemeral"):
            claim = await self.claims.locate(pod, spec)
            foreign = self._claimed is None or self._claimed not in claim.path.resolve().parents
            if foreign:
                host_path.check(str(claim.path), "", hidden=self._hidden)
            owner = 0 if self._ids.idmap else self._owner(pod)
            if owner and not foreign:
                os.chown(claim.path, owner, owner)
            group = _fs_group(pod)
            if group is not None and not foreign and not claim.read_only and self._ids.many:
                only_root = pod["spec"]["securityContext"].get("fsGroupChangePolicy") == "OnRootMismatch"
                await WALKS.walk(set_group(claim.path, owner + group, root_decides=only_root))
            return MountedVolume(
                claim.path, read_only=claim.read_only, foreign=foreign, owner=owner, idmap=self._ids.idmap
            )
        if kind == "image":
            return await self._image(pod, spec)
        raise ConfigError(
            f"volumes of kind {kind} need a driver that a local cluster does not have; "
            "use a persistentVolumeClaim, hostPath or emptyDir"
        )

    def _directory(self, pod: Object, spec: Object) -> Path:
        in_memory = (spec.get("emptyDir") or {}).get("medium") == "Memory" and self._mount is None
        root = self._tmpfs if in_memory or _is_secret(spec) else self._pods
        return root / pod["metadata"]["uid"] / "volumes" / spec["name"]

    def _empty_dir(self, pod: Object, spec: Object) -> MountedVolume:
        directory, owner = self._directory(pod, spec), self._owner(pod)
        medium = spec["emptyDir"].get("medium") or ""
        if medium not in ("", "Memory"):
            raise ConfigError(
                f"an emptyDir of medium {medium} is not available here; use Memory or leave it out"
            )
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        group, mode = self._group(pod), 0o777 if _fs_group(pod) is None else 0o2777
        if medium == "Memory" and self._mount and not directory.is_mount():
            size = _memory_size(pod, spec)
            options = f"mode={mode:o}" + (f",uid={owner},gid={group}" if self._ids.many else "")
            options += f",size={size}" if size else ""
            flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
            self._mount("tmpfs", str(directory), "tmpfs", flags, options)
        elif not medium or not self._mount:
            if self._ids.many:
                os.chown(directory, owner, group)
            directory.chmod(mode)
        return MountedVolume(directory, owner=owner)

    async def _image(self, pod: Object, spec: Object) -> MountedVolume:
        """Get an image as a volume, which is read-only."""
        source, directory = spec["image"], self._directory(pod, spec)
        request = {"name": "", "image": source["reference"], "imagePullPolicy": source.get("pullPolicy")}
        if self._images is None:
            raise ConfigError("images cannot be mounted here")
        image = await self._images.get(pod, request, used_by=directory)
        if not image.layers:
            raise ConfigError(
                f'image "{source["reference"]}" is not pulled, and nothing stands in for a volume'
            )
        return MountedVolume(image.store, read_only=True, managed=True, idmap=True, layers=image.layers)

    def _group(self, pod: Object) -> int:
        """Compute the id of the pod's ``fsGroup`` on the disk, or else of its root group."""
        return self._owner(pod) + (_fs_group(pod) or 0 if self._ids.many else 0)

    def _owner(self, pod: Object) -> int:
        return self._ids.of(pod["metadata"]["uid"]).host_id

    async def _write(self, pod: Object, spec: Object, files: projected.Files) -> bool:
        if _fs_group(pod) is not None:
            files = {path: replace(file, mode=file.mode | 0o440) for path, file in files.items()}
        write = functools.partial(
            projected.write_atomically,
            self._directory(pod, spec),
            files,
            owner=self._owner(pod),
            group=self._group(pod),
        )
        is_large = self.shares.of_pod(pod["metadata"]["uid"]) > LARGE
        return await WALKS.call(write) if is_large else write()

    async def _files(self, pod: Object, spec: Object, known: projected.PodPayload) -> projected.Files:
        kind = _kind(spec)
        source = spec[kind]
        mode = source.get("defaultMode", projected.DEFAULT_MODE)
        if kind != "projected":
            if kind == "secret":
                source = source | {"name": source["secretName"]}
            return await self._source(pod, kind, source, mode, known)
        # The API server drops the content of sources of unknown kinds, which leaves an empty entry.
        projections: list[tuple[str, Object]] = [
            next(iter(entry.items()), ("unknown", {})) for entry in source.get("sources") or []
        ]
        parts = await _gather_in_batches(
            self._source(pod, name, part, mode, known, place=(spec["name"], index))
            for index, (name, part) in enumerate(projections)
        )
        return {path: file for part in parts for path, file in part.items()}

    async def _source(
        self,
        pod: Object,
        kind: str,
        source: Object,
        mode: int,
        known: projected.PodPayload,
        *,
        place: tuple[str, int] = ("", 0),
    ) -> projected.Files:
        if kind in ("configMap", "secret"):
            read = self._objects.configmap if kind == "configMap" else self._objects.secret
            key = kind, source["name"]
            if key not in known.items:
                known.items.setdefault(key, await read(pod, source["name"]))
            item = _required(known.items[key], source, kind.lower())
            known.count(projected.count_files(source, item))
            work = functools.partial(projected.object_files, kind, source, item, mode=mode, contents=known)
            return await TEXTS.call(work) if projected.count_files(source, item) > FEW else work()
        if kind == "downwardAPI":
            known.count(len(source.get("items") or ()))
            allocatable = self._allocatable(pod["spec"].get("nodeName", ""))
            return projected.downward_files(source, pod, mode=mode, allocatable=allocatable, contents=known)
        contents = await self._credentials.contents(pod, kind, source, place=place)
        if contents is None:
            raise ConfigError(f"projections of kind {kind} are not available in a local cluster")
        uid = _only_user(pod)
        if uid is not None or _fs_group(pod) is not None:
            mode = 0o600
        owner = (uid or 0) * self._ids.many
        return {path: projected.VolumeFile(content, mode, owner) for path, content in contents.items()}


def _fs_group(pod: Object) -> int | None:
    return (pod["spec"].get("securityContext") or {}).get("fsGroup")


def _only_user(pod: Object) -> int | None:
    """Find the common user of all containers, who owns a pod's token; None if they differ or are not set."""
    users = {effective(pod, container, "runAsUser") for _, container in containers(pod)}
    return users.pop() if len(users) == 1 else None


def mounts(
    container: Object,
    volumes: Mapping[str, MountedVolume],
    *,
    environment: Mapping[str, str] | None = None,
    hidden: Set[Identity] = frozenset(),
) -> list[MountSpec]:
    """Make the mounts of one container, outer directories first.

    Args:
        volumes: From ``VolumeManager.prepare``.
        environment: The variables that the pod declares for it, for ``subPathExpr``.
        hidden: Directories that are hidden in foreign volumes.

    Raises:
        ConfigError: A path in a volume has a variable without a value, or is not a path below it.
        VolumeError: With the reason of a waiting container: a subPath that leads out of its volume, or that
            is missing in a volume in which nothing may be created.
    """
    entries = []
    for mount in container.get("volumeMounts") or []:
        volume = volumes[mount["name"]]
        target = "/" + mount["mountPath"].strip("/")
        path = subpath(mount, environment or {})
        try:
            subpaths = _subpaths(volume, path, hidden)
        except OSError as error:
            message = f'failed to prepare subPath for volumeMount "{mount["name"]}": subPath {path!r}: '
            raise VolumeError(
                message + (error.strerror or ""), reason="CreateContainerConfigError"
            ) from error
        options = ["ro"] if volume.read_only or mount.get("readOnly") else []
        if volume.layers:
            options = ["ro", f"lowerdir={':'.join(reversed(volume.layers))}"]
            entries.append(MountSpec(target, "overlay", str(volume.source), tuple(options), subpaths))
            continue
        if volume.read_only or mount.get("recursiveReadOnly") in ("Enabled", "IfPossible"):
            options.append("rro")
        if volume.idmap:
            options.append("idmap")
        if volume.foreign and hidden:
            options.append("masked")
        entries.append(MountSpec(target, "bind", str(volume.source), tuple(options), subpaths))
    return sorted(entries, key=lambda entry: entry.destination.count("/"))


def _subpaths(volume: MountedVolume, path: str, hidden: Set[Identity]) -> tuple[str, ...]:
    """Check a path in a volume, and create missing directories in a writable volume.

    The mount resolves it again, because a container may change it meanwhile.
    """
    if not path:
        return volume.subpaths
    if not volume.layers:
        avoided = hidden if volume.foreign else frozenset()
        with opened(volume.source, *volume.subpaths, hidden=avoided) as root:
            mode = stat.S_IMODE(os.fstat(root).st_mode) & 0o2777  # of the volume, as the kubelet does
            fixed = volume.managed or volume.read_only
            make = None if fixed else host_path.maker(owner=volume.owner, mode=mode)
            os.close(Resolution(hidden=avoided, make=make).open(root, path))
    return (*volume.subpaths, path)


async def _gather_in_batches(works: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await a few at a time, because each holds an object in memory; raise the first failure."""
    waiting, results = iter(works), []
    while batch := list(itertools.islice(waiting, BATCH)):
        results += await asyncio.gather(*batch)
    return results


def _names_objects(specs: Iterable[Object]) -> bool:
    """Check whether volumes refer to ConfigMaps or Secrets, other than the CA that all pods have."""
    sources = (source for spec in specs for source in (spec.get("projected") or {}).get("sources") or (spec,))
    return any(
        "secret" in source or source.get("configMap", {}).get("name", ROOT_CA) != ROOT_CA
        for source in sources
    )


def _is_secret(spec: Object) -> bool:
    """Check whether a volume is in memory: content from the API that is not public."""
    sources = (spec.get("projected") or {}).get("sources") or ()
    return "secret" in spec or any(set(source) & PUBLIC == set() for source in sources)


def _kind(spec: Object) -> str:
    return next((key for key in spec if key != "name"), "emptyDir")


def _required(item: Object | None, source: Object, word: str) -> Object | None:
    if item is None and not source.get("optional"):
        raise ConfigError(f'{word} "{source["name"]}" not found')
    return item


def _failed(spec: Object, problem: str) -> VolumeError:
    return VolumeError(f'MountVolume.SetUp failed for volume "{spec["name"]}" : {problem}')


def _memory_size(pod: Object, spec: Object) -> int | None:
    """Compute the smaller of the volume's limit and the sum of the containers' memory limits."""
    sizes = [whole(spec["emptyDir"]["sizeLimit"])] if spec["emptyDir"].get("sizeLimit") else []
    limits = [(c.get("resources") or {}).get("limits", {}).get("memory") for c in pod["spec"]["containers"]]
    if all(limits):
        sizes.append(sum(whole(limit) for limit in limits))
    return min(sizes) if sizes else None
