"""Jobs: Kubernetes objects that can be shown, saved, patched and launched; and what training jobs share.

A job is data until `launch` creates its objects; then a `Run` follows it. Which object makes the pods, and
how the ranks find each other, is in the modules beside this one.
"""

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from kitlib import config
from kitlib.clusters import Cluster, connect
from kitlib.errors import BadInput, KitError, LaunchRejected, Rejected, RunExists
from kitlib.jobs.sources import Remote, flags, remote, sources
from kitlib.k8s import manifests, names
from kitlib.k8s.api_errors import launch_rejected
from kitlib.k8s.client import Kube
from kitlib.k8s.job_kinds import KINDS
from kitlib.k8s.manifests import Manifest, Object, merge, title
from kitlib.k8s.priority import ensure_priority_class
from kitlib.k8s.quantities import check_count, check_quantity, parse_quantity
from kitlib.runs.run import Run
from kitlib.runs.status import find_main

MAX_NODES, MAX_PROCESSES, MAX_GPUS = 1000, 256, 16
GPU = "nvidia.com/gpu"
FOLDER = "/trainyard/trainer"
FETCH = config.DATA / "trainers" / "fetch_trainer.py"
SOURCE_VOLUME = "/trainyard/source"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # torch reads the second first
RESERVED_PATHS = ("/trainyard", "/workspace", "/dev")


class Job(ABC):
    """A job, as Kubernetes objects.

    Contract: `build` returns the objects in the order in which they are created, the one that makes the pods
    last; all carry the kit's labels. Nothing in the cluster changes before `launch`, which checks that
    ``claims`` (PersistentVolumeClaims) and ``secrets`` exist and creates those ``priorities``
    (PriorityClasses) that the kit defines. ``additions`` is what a provider adds to the pods' spec,
    ``annotations`` what it wants on them.
    """

    name: str
    patches: tuple[Mapping, ...] = ()
    additions: Mapping = MappingProxyType({})
    annotations: Mapping = MappingProxyType({})
    claims: tuple[str, ...] = ()
    priorities: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    @abstractmethod
    def build(self) -> list[Object]:
        """Build the objects, before patches."""

    @property
    def objects(self) -> list[Object]:
        """The objects that `launch` creates."""
        *others, main = self.build()
        for patch in self.patches:
            main = merge(main, patch)
        return [*others, main]

    def manifest(self, kind: str | None = None) -> Manifest:
        """Show the objects as YAML, in colours in a notebook; ``kubectl apply -f`` takes it.

        Args:
            kind: Objects of this kind alone: ``job.manifest("Job")`` leaves out the trainer's source.

        Raises:
            BadInput: There is none of this kind.
        """
        chosen = [each for each in self.objects if kind in (None, each["kind"])]
        if not chosen:
            kinds = ", ".join(each["kind"] for each in self.objects)
            raise BadInput("this job has no object of that kind", about=f"{kind!r}", fix=f"one of {kinds}")
        return manifests.write(chosen)

    def save(self, path: str | Path) -> Path:
        """Write the manifest to a file, for ``kubectl apply -f`` or for version control.

        Raises:
            BadInput: The file cannot be written.
        """
        try:
            Path(path).write_text(self.manifest(), encoding="utf-8")
        except OSError as error:
            what = f"the manifest cannot be written: {error.strerror}"
            raise BadInput(what, about=str(path), fix="give a path that you can write") from error
        return Path(path)

    def patch(self, overrides: Mapping) -> "Job":
        """Copy the job with ``overrides`` merged into its main object; for all that is no argument.

        Dicts merge, None removes, lists whose members have a name merge by it.

        Example:
            >>> job = IndexedJob("trainers/digits_ddp.py", name="digits")
            >>> job = job.patch({"spec": {"activeDeadlineSeconds": 600}})
        """
        if not isinstance(overrides, Mapping):
            raise BadInput("a patch is a dict", about=repr(overrides), fix='job.patch({"spec": {…}})')
        other = copy.copy(self)
        other.patches = (*self.patches, copy.deepcopy(dict(overrides)))
        return other

    def on(self, cluster: Cluster) -> "Job":
        """Copy the job as `launch` sends it to a cluster: with what the provider's nodes require of pods.

        Example:
            >>> job.on(cluster).manifest("Job")
        """
        other = copy.copy(self)
        other.additions = cluster.pod_additions(gpus=getattr(self, "gpus", 0))
        other.annotations = cluster.pod_annotations(self.claims)
        return other

    def __repr__(self) -> str:
        return f'{type(self).__name__} "{self.name}": {", ".join(title(each) for each in self.objects)}'


def launch(job: Job, *, cluster: Cluster | str = config.DEFAULT_CLUSTER, replace: bool = False) -> Run:
    """Create a job's objects in a cluster and return the run.

    Args:
        job: The job.
        cluster: The cluster, or its name.
        replace: Delete an earlier run of this name first, and wait until its pods are gone.

    Raises:
        RunExists: A run of this name exists, and ``replace`` is not given.
        LaunchRejected: The API server rejected an object; nothing was left behind.

    Example:
        >>> run = launch(IndexedJob("trainers/digits_ddp.py", nodes=4))
        >>> run.wait()
    """
    if not isinstance(job, Job):
        example = 'kit.launch(kit.IndexedJob("trainers/digits_ddp.py"))'
        raise BadInput("this is no job", about=repr(job), fix=example)
    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    kube, job = cluster.kube, job.on(cluster)
    objects = job.objects
    main = objects[-1]
    run = Run(kube, job.name, kind=main["kind"], cluster=cluster)
    if replace:
        Run(kube, job.name).delete()
    elif find_main(kube, job.name) is not None:
        raise RunExists(
            "a run of this name exists",
            about=run.about,
            fix="kit.launch(job, replace=True) deletes it first; or give this one another name=",
        )
    _check_claims_and_secrets(kube, job, about=run.about)
    for each in job.priorities:
        ensure_priority_class(kube, each)
    try:
        for dry_run in (True, False):  # all are checked before the first is created
            for index, each in enumerate(objects):
                document = index
                _create(kube, each, job.name, main=each is main, dry_run=dry_run)
    except Rejected as error:
        run.delete()
        raise _launch_error(error, job, objects, document, cluster=kube.cluster) from error
    except (KitError, KeyboardInterrupt):
        run.delete()
        raise
    return run


def _launch_error(
    error: Rejected, job: Job, objects: Sequence[Object], document: int, *, cluster: str
) -> LaunchRejected:
    main = objects[-1]
    operator = KINDS[main["kind"]].operator
    install = f'kit.install("{operator}", cluster="{cluster}")'
    if objects[document] is main and error.status == 404:
        what = f"the cluster has no kind {main['kind']} in {main['apiVersion']}"
        return LaunchRejected(what, about=f'{title(main)} in cluster "{cluster}"', fix=f"{install} brings it")
    fix = "fix what is named, in job.patch(…) or in the arguments; job.manifest() shows it all"
    if operator and "failed calling webhook" in error.what:
        fix = f"its operator does not answer: {install} repairs it"
    return launch_rejected(error, job.manifest(), document=document, fix=fix)


def _create(kube: Kube, item: Object, run: str, *, main: bool, dry_run: bool) -> None:
    """Create an object; one that is not the main object may replace what an earlier run left behind."""
    old = None if main else kube.find(item["kind"], item["metadata"]["name"])
    if old is not None:
        if (old["metadata"].get("labels") or {}).get(names.RUN) != run:
            about = f'{title(old)} in cluster "{kube.cluster}"'
            raise RunExists(
                "something else has the name of this run", about=about, fix="give it another name="
            )
        if dry_run:
            return
        kube.delete(item["kind"], item["metadata"]["name"])
    kube.create(item, dry_run=dry_run)


def _check_claims_and_secrets(kube: Kube, job: Job, *, about: str) -> None:
    """Raise BadInput for a missing volume or Secret: pods would wait for it forever."""
    for claim in job.claims:
        if kube.find("PersistentVolumeClaim", claim) is None:
            fix = f'cluster.create_volume("{claim}"); cluster.volumes() lists the existing ones'
            raise BadInput(f'there is no volume "{claim}"', about=about, fix=fix)
    for secret in job.secrets:
        if kube.find("Secret", secret) is None:
            raise BadInput(
                f'there is no Secret "{secret}"',
                about=about,
                fix=f"kubectl create secret generic {secret} --from-literal=AWS_ACCESS_KEY_ID=…\n"
                f"or, for an image: kubectl create secret docker-registry {secret} --docker-server=… "
                "--docker-username=… --docker-password=…",
            )


class TrainingJob(Job):
    """A training program on several nodes, one pod each.

    Args:
        trainer: Path of a Python file, relative to here or to the root of the repository. It is put into a
            ConfigMap, with the modules beside it that it imports; torchrun starts it. Or a URL from which
            pods fetch it: ``s3://bucket/code/main.py``, ``gs://…``, ``volume://shared/code/main.py``.
        nodes: Number of pods, each on a node of its own as far as there are nodes.
        processes_per_node: Processes that torchrun starts in each pod; by default one for each GPU, or one.
        args: Flags of the trainer: ``{"epochs": 3, "amp": True}`` or ``["--epochs=3", "--amp"]``.
        volumes: Mount paths and volumes: ``{"/data": cluster.volume("shared")}``, or a volume's name.
        cpu: Cores of each pod, such as 0.5 or "500m"; by default no request, and a limit of one core for each
            process.
        memory: Memory of each pod, such as "2Gi"; by default not limited.
        gpus: GPUs of each pod.
        priority: The pods' PriorityClass: pods of ``high`` preempt those of ``low``. These two are created if
            they are missing; by default the pods have the cluster's default.
        source_secret: A Secret with the environment variables needed to fetch a trainer, if that is not the
            pods' own identity: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL`` …
        image: Of the pods, with torch in it; by default ``TRAINYARD_IMAGE``, or PyTorch's official one.
        pull_secret: The Secret by which nodes may pull it; by default ``TRAINYARD_PULL_SECRET``, or none.
        name: Name of the run; by default made from the trainer's, and unique.

    Raises:
        BadInput: The trainer is missing, too large or no Python; or another argument is invalid.
    """

    folder: ClassVar[str]  # of manifests/

    def __init__(
        self,
        trainer: str | Path,
        *,
        nodes: int = 4,
        processes_per_node: int | None = None,
        args: Mapping | Sequence = (),
        volumes: Mapping[str, object] | None = None,
        cpu: str | float | None = None,
        memory: str | None = None,
        gpus: int = 0,
        priority: str | None = None,
        source_secret: str | None = None,
        image: str | None = None,
        pull_secret: str | None = None,
        name: str | None = None,
    ) -> None:
        self.remote = remote(trainer, source_secret)
        self.trainer = Path(self.remote.name) if self.remote else config.find(trainer)
        self.sources = sources(FETCH if self.remote else self.trainer)
        self.nodes = check_count(nodes, what="nodes", least=1, most=MAX_NODES)
        self.args = flags(args)
        self.volumes = _claims(volumes or {})
        source = (self.remote.claim,) if self.remote and self.remote.claim else ()
        self.claims = tuple(dict.fromkeys([*self.volumes.values(), *source]))
        self.cpu = check_quantity(cpu, what="cpu", example="0.5")
        self.memory = check_quantity(memory, what="memory", example='"2Gi"')
        self.gpus = check_count(gpus, what="gpus", least=0, most=MAX_GPUS)
        if priority is not None:
            self.priorities = (names.validate_name(priority, kind="priority class"),)
        processes = max(1, self.gpus) if processes_per_node is None else processes_per_node
        self.processes_per_node = check_count(
            processes, what="processes_per_node", least=1, most=MAX_PROCESSES
        )
        name = names.unique(self.trainer.stem) if name is None else name
        self.name = names.validate_name(name, kind="run", longest=names.MAX_RUN_NAME)
        for word, value in (("image", image), ("pull_secret", pull_secret)):
            if value is not None and (not isinstance(value, str) or len(value.split()) != 1):
                fix = 'image="registry.example/mine:1", or leave it out'
                raise BadInput(f"{word} is a name", about=f"{word}={value!r}", fix=fix)
        given = config.read()
        own = {"image": image or given.image, "pull_secret": pull_secret or given.pull_secret}
        self.settings = dataclasses.replace(given, **own)
        needed = (self.remote.secret if self.remote else None, self.settings.pull_secret)
        self.secrets = tuple(filter(None, needed))
        self.labels = names.labels(run=self.name, workshop=given.workshop, lifetime=given.lifetime)

    @abstractmethod
    def _main(self) -> Object:
        """Build the object that makes the pods, before patches."""

    def build(self) -> list[Object]:
        """Build the ConfigMap with the trainer, and the main object."""
        return [self._config_map(), self._main()]

    def _read(self, kind: str, *, folder: str = "") -> Object:
        """Read an object of ``manifests/`` and give it the name and the labels of this run."""
        (item,) = manifests.read(config.manifests(folder or self.folder, f"{kind}.yaml"))
        return merge(item, {"metadata": {"name": self.name, "labels": self.labels}})

    def _config_map(self) -> Object:
        """Build the ConfigMap with the trainer and the modules beside it that it imports."""
        return self._read("configmap", folder="trainer") | {"data": self.sources}

    def _pod_template(self, template: Object, **container: object) -> Object:
        """Fill in a manifest's pod template.

        Args:
            template: With ``metadata`` and ``spec``; its one container has ``command``, the trainer last.
            container: More fields of the container.
        """
        (base,) = template["spec"]["containers"]
        spread = copy.deepcopy(template["spec"]["topologySpreadConstraints"])
        for each in spread:  # whatever the label, its value is the run
            labels = each["labelSelector"]["matchLabels"]
            labels.update(dict.fromkeys(labels, self.name))
        filled = {
            "image": self.settings.image,
            "command": [*base["command"][:-1], self._path],
            "args": self.args,
            "env": [*base.get("env", []), *self._environment],
            "resources": self._resources,
            "volumeMounts": [*base["volumeMounts"], *self._mounts],
        }
        spec = {
            "topologySpreadConstraints": spread,
            "containers": [merge(merge(base, filled), {"name": base["name"], **container})],
            "volumes": self._pod_volumes,
            "priorityClassName": self.priorities[0] if self.priorities else None,
            "imagePullSecrets": self.settings.pull_secrets,
            **self._pod_additions(),
        }
        meta = {"labels": self.labels, "annotations": dict(self.annotations) or None}
        pod = merge(template, {"metadata": meta, "spec": spec})
        return merge(pod, {"spec": self._fetching(self.remote, base["name"])}) if self.remote else pod

    def _fetching(self, source: Remote, container: str) -> Object:
        """Build what a pod needs to fetch its trainer before its container starts."""
        spec = self._read("fetch", folder="trainer")["spec"]
        (init,) = spec["initContainers"]
        mounts, volumes = init["volumeMounts"], spec["volumes"]
        if source.claim:
            mounts = [*mounts, {"name": "source", "mountPath": SOURCE_VOLUME, "readOnly": True}]
            volumes = [*volumes, {"name": "source", "persistentVolumeClaim": {"claimName": source.claim}}]
        filled = {
            "image": self.settings.image,
            "command": [*init["command"][:2], source.url, *init["command"][3:]],
            "volumeMounts": mounts,
            "envFrom": [{"secretRef": {"name": source.secret}}] if source.secret else None,
        }
        carried, fetched = init["volumeMounts"]
        main = {"name": container, "volumeMounts": [carried, fetched | {"readOnly": True}]}
        return {"initContainers": [merge(init, filled)], "containers": [main], "volumes": volumes}

    @property
    def _path(self) -> str:
        """The trainer's path in the pods."""
        return f"{FOLDER}/{self.trainer.name}"

    @property
    def _resources(self) -> Object:
        """Requests and limits of each pod."""
        given = {"cpu": self.cpu, "memory": self.memory, GPU: str(self.gpus) if self.gpus else None}
        requests = {key: value for key, value in given.items() if value is not None}
        return {"requests": requests, "limits": {"cpu": str(self.processes_per_node)} | requests}

    @property
    def _environment(self) -> list[Object]:
        """Threads of each process where processes share a pod: together the pod's number of cores."""
        if self.processes_per_node == 1:
            return []
        cores = parse_quantity(self._resources["limits"]["cpu"])
        threads = str(max(1, int(cores / self.processes_per_node)))
        return [{"name": name, "value": threads} for name in THREADS]

    @property
    def _tolerations(self) -> list[Object]:
        """Tolerations of the taints of GPU nodes on GKE and EKS, and of those in the settings."""
        gpu = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
        return [*([gpu] if self.gpus else []), *self.settings.tolerations]

    def _pod_additions(self) -> Object:
        """Merge the tolerations with what the provider adds to the pods' spec."""
        tolerations = [*self._tolerations, *self.additions.get("tolerations", [])]
        return {**self.additions, "tolerations": tolerations or None}

    @property
    def _pod_volumes(self) -> list[Object]:
        """The pods' volumes that differ from run to run."""
        claimed = [
            {"name": f"volume-{index}", "persistentVolumeClaim": {"claimName": claim}}
            for index, claim in enumerate(self.volumes.values())
        ]
        return [{"name": "trainer", "configMap": {"name": self.name}}, *claimed]

    @property
    def _mounts(self) -> list[Object]:
        """The containers' mounts of the requested volumes."""
        return [{"name": f"volume-{index}", "mountPath": path} for index, path in enumerate(self.volumes)]


def _claims(volumes: Mapping[str, object]) -> dict[str, str]:
    """Map each mount path to the name of its claim."""
    example = 'volumes={"/data": "shared"}'
    if not isinstance(volumes, Mapping):
        raise BadInput("volumes are a dict: path -> volume", about=f"volumes={volumes!r}", fix=example)
    found = {}
    for path, volume in volumes.items():
        if not isinstance(path, str) or not path.startswith("/") or path == "/" or ":" in path:
            raise BadInput("a volume is mounted at an absolute path", about=repr(path), fix=example)
        if any(path == own or path.startswith(f"{own}/") for own in RESERVED_PATHS):
            raise BadInput("this path of the pods is reserved", about=repr(path), fix=example)
        name = volume if isinstance(volume, str) else getattr(volume, "name", None)
        found[path] = names.validate_name(name, kind="volume")
    return found
