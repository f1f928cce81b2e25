"""Jobs: Kubernetes objects that can be shown, saved, patched and launched; and the base of training jobs.

A job is data until `launch` creates its objects; then a `Run` follows it. Which object makes the pods, and
how the ranks find each other, is in the modules beside this one.
"""

import copy
import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypedDict

from kitlib import config
from kitlib.clusters import Cluster
from kitlib.display.signatures import checked_class
from kitlib.errors import BadInput
from kitlib.jobs.arguments import check_environment, check_image, claims_of
from kitlib.jobs.layout import FOLDER
from kitlib.jobs.program import RANKS_FOLDER, TrainerProgram, ranks_for, with_path
from kitlib.jobs.referenced_files import add_referenced_files, find_referenced_files
from kitlib.jobs.resources import GPU_COUNT, GPU_TOLERATION, NCCL_WARNINGS, NO_GPUS, NodeResources
from kitlib.jobs.sources import Remote, Sources, check_size, data_of, escape_dollars, fits, volume_of
from kitlib.k8s import images, limit_ranges, manifests, names
from kitlib.k8s.client import allowed
from kitlib.k8s.manifests import Manifest, Object, merge, title
from kitlib.k8s.pod_security import PodSecurity
from kitlib.k8s.quantities import GPU, check_count, check_quantity, parse_quantity

MAX_NODES, MAX_PROCESSES, MAX_GPUS, MAX_USER = 1000, 256, 16, 2**31 - 1
SOURCE_VOLUME = "/trainyard/source"
WORKSPACE = "/workspace"  # the working directory
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # torch reads the second first


class Job(ABC):
    """A job, as Kubernetes objects.

    Contract: `build` returns the objects in the order in which they are created, the one that makes the pods
    last; all carry the kit's labels. Nothing in the cluster changes before `launch`, which checks that
    ``claims`` (PersistentVolumeClaims) and ``secrets`` exist and creates those ``priorities``
    (PriorityClasses) that the kit defines. ``additions`` are the provider's fields of the pods'
    spec, ``annotations`` its annotations of the pods. The image of the ``settings`` is empty where the
    cluster decides.
    """

    name: str
    settings: config.Settings
    patches: tuple[Mapping[str, Any], ...] = ()
    additions: Mapping[str, Any] = MappingProxyType({})
    annotations: Mapping[str, Any] = MappingProxyType({})
    claims: tuple[str, ...] = ()
    priorities: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    run_as_user: int | None = None
    security: PodSecurity = PodSecurity()
    limit_ranges: Sequence[Object] = ()

    @abstractmethod
    def build(self) -> list[Object]:
        """Build the objects, before patches."""

    @property
    def image(self) -> str:
        """The image of its pods; before `bind`, by default PyTorch's official one."""
        return self.settings.image or config.DEFAULT_IMAGE

    @property
    def objects(self) -> list[Object]:
        """The objects that `launch` creates."""
        *others, main = self.build()
        for patch in self.patches:
            main = merge(main, patch)
        return [self._admitted(item) for item in (*others, main)]

    def _admitted(self, item: Object) -> Object:
        """Give the pods of an object the images, the rights and the resources that their namespace admits."""
        pulled = images.pull_from(item, self.settings.registry, self.settings.pull_secrets)
        chosen = {name: value for name in limit_ranges.RESOURCES if (value := getattr(self, name, None))}
        return limit_ranges.fit(self.security.apply(pulled), self.limit_ranges, chosen=chosen)

    def manifest(self, kind: str | None = None) -> Manifest:
        """Format the objects as YAML for ``kubectl apply -f``, in colours in a notebook.

        Args:
            kind: Objects of this kind alone: ``job.manifest("Job")`` leaves out the trainer's source.

        Raises:
            BadInput: It has no object of this kind.
        """
        chosen = [item for item in self.objects if kind in (None, item["kind"])]
        if not chosen:
            kinds = ", ".join(item["kind"] for item in self.objects)
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

    def patch(self, overrides: Mapping[str, Any]) -> "Job":
        """Copy the job with ``overrides`` merged into its main object.

        It sets the fields that no argument sets.
        Dicts merge, None removes, lists whose members have a name merge by it.

        Example:
            >>> job = IndexedJob("trainers/digits_ddp.py", name="digits")
            >>> job = job.patch({"spec": {"activeDeadlineSeconds": 600}})
        """
        if not isinstance(overrides, Mapping):
            raise BadInput("a patch is a dict", about=repr(overrides), fix='`job.patch({"spec": {…}})`')
        job = copy.copy(self)
        job.patches = (*self.patches, copy.deepcopy(dict(overrides)))
        return job

    def bind(self, cluster: Cluster) -> Self:
        """Copy the job as `launch` sends it to a cluster: with its image, and fitted to its nodes.

        Raises:
            BadInput: The cluster is at a cloud, and no image was built for it.

        Example:
            >>> job.bind(cluster).manifest("Job")
        """
        job = copy.copy(self)
        job.additions = cluster.pod_additions()
        job.annotations = cluster.pod_annotations(self.claims)
        job.security = cluster.pod_security(self.run_as_user)
        job.limit_ranges = allowed(lambda: cluster.kube.get_all("LimitRange")) or []
        if not self.settings.image:
            job.settings = dataclasses.replace(self.settings, image=cluster.trainer_image())
        return job

    def __repr__(self) -> str:
        return f'{type(self).__name__} "{self.name}": {", ".join(title(item) for item in self.objects)}'


class JobArguments(TypedDict, total=False):
    """The arguments of a `TrainingJob`, except the first and ``nodes``, for classes that pass them on."""

    processes_per_node: int | None
    args: Mapping[str, Any] | Sequence[object]
    root: str | Path | None
    module: str | None
    files: Sequence[str | Path]
    env: Mapping[str, object] | None
    workspace: object
    volumes: Mapping[str, object] | None
    cpu: str | float | None
    memory: str | None
    gpus: int | None
    priority: str | None
    source_secret: str | None
    image: str | None
    run_as_user: int | None
    name: str | None
    template: str | Path | None


@checked_class
class TrainingJob(Job):
    """A training program on several nodes, one pod each.

    Args:
        trainer: Path of a Python file, relative to here or to the root of the repository. It is put into a
            ConfigMap, with the modules and packages beside it that it imports; torchrun starts it. Or a URL
            from which pods fetch it: ``s3://bucket/code/main.py``, ``gs://…``,
            ``volume://shared/code/main.py``. Or a function, whose source is sent: it imports what it uses.
        nodes: Number of pods, each on a node of its own as far as there are nodes.
        processes_per_node: Processes that torchrun starts in each pod; by default one, or ``gpus``.
        args: Flags of the trainer: ``{"epochs": 3, "amp": True}``, which are written as its parser spells
            them, or ``["--epochs=3", "--amp"]``; of a function its arguments by name.
        root: The project's folder, from which modules are imported as well; by default what the trainer puts
            on ``sys.path``, or the folder above with a ``pyproject.toml`` or ``.git``.
        module: The module that is started in the place of a file: ``"engine.train"``, as by ``python -m``.
        files: Files and folders beside the trainer that it reads, of ``module=`` below the root; in the
            pods they are there too, and copies in the working directory, where it may write.
        env: Environment variables of the trainer: ``{"WANDB_MODE": "offline"}``. Ranks and the address of the
            first are set by whoever starts it.
        workspace: A volume, or its name, for the working directory, which is its folder ``runs/<name>``. So
            what the trainer writes to relative paths is kept; by default it is deleted with the pods.
        volumes: Mount paths and volumes: ``{"/data": cluster.volume("shared")}``, or a volume's name.
        cpu: Cores of each pod, such as 0.5 or "500m"; by default its share of a node's cores is the limit.
            Pods with GPUs have no limit.
        memory: Memory of each pod, such as "2Gi"; by default not limited.
        gpus: GPUs of each pod; by default one for each process where nodes have enough, as `bind` finds out.
        priority: The pods' PriorityClass: pods of ``high`` preempt those of ``low``. These two are created if
            they are missing; by default the pods have the cluster's default.
        source_secret: A Secret with the environment variables needed to fetch a trainer, if that is not the
            pods' own identity: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL`` …
        image: Image of the pods, with torch; by default ``TRAINYARD_IMAGE``, or the cluster's own. Nodes pull
            it with the Secret ``TRAINYARD_PULL_SECRET``.
        run_as_user: The user ID of the pods; 0 is root, with the rights that images have by default. By
            default 65532, with home in ``/tmp`` and without any rights on the node, as strict namespaces
            demand; on OpenShift the namespace's.
        name: Name of the run; by default made from the trainer's, and unique.
        template: A YAML file with an object of the job's kind, to be filled in in place of the kit's own.

    Raises:
        BadInput: The trainer is missing, too large or no Python; or another argument is invalid.
    """

    folder: ClassVar[str]  # of manifests/
    copies_files: ClassVar[bool] = True  # into the working directory, where the program may write
    shared: Mapping[str, object] | None = None  # the volume of sources that are too large for a ConfigMap
    node_resources: NodeResources = NodeResources()
    ranks: Mapping[str, str] = MappingProxyType({})  # carried beside the sources

    def __init__(
        self,
        trainer: str | Path | Callable[..., object] | TrainerProgram | None = None,
        *,
        nodes: int = 4,
        processes_per_node: int | None = None,
        args: Mapping[str, Any] | Sequence[object] = (),
        root: str | Path | None = None,
        module: str | None = None,
        files: Sequence[str | Path] = (),
        env: Mapping[str, object] | None = None,
        workspace: object = None,
        volumes: Mapping[str, object] | None = None,
        cpu: str | float | None = None,
        memory: str | None = None,
        gpus: int | None = None,
        priority: str | None = None,
        source_secret: str | None = None,
        image: str | None = None,
        run_as_user: int | None = None,
        name: str | None = None,
        template: str | Path | None = None,
    ) -> None:
        self.file: Path | None = None if template is None else config.find(template)
        if not isinstance(trainer, TrainerProgram):
            trainer = TrainerProgram.read(
                trainer, args, files=files, secret=source_secret, root=root, module=module
            )
        self.function, self.remote, self.ranks = trainer.function, trainer.remote, ranks_for(image)
        self.trainer, self.args, self.sources = trainer.path, trainer.args, trainer.sources
        self.files, self.modes, self.layout = trainer.files, trainer.modes, trainer.layout
        self.env: list[Object] = check_environment(env or {})
        self.nodes: int = check_count(nodes, what="nodes", least=1, most=MAX_NODES)
        self.volumes: dict[str, str] = claims_of(volumes or {})
        source = (self.remote.claim,) if self.remote and self.remote.claim else ()
        self.workspace: str | None = None if workspace is None else claims_of({"/w": workspace})["/w"]
        own = (self.workspace,) if self.workspace else ()
        self.claims = tuple(dict.fromkeys([*self.volumes.values(), *own, *source]))
        self.cpu: str | None = check_quantity(cpu, what="cpu", example="0.5")
        self.memory: str | None = check_quantity(memory, what="memory", example='"2Gi"')
        self.gpus = None if gpus is None else check_count(gpus, what="gpus", least=0, most=MAX_GPUS)
        if priority is not None:
            self.priorities = (names.validate_name(priority, kind="priority class"),)
        processes = max(1, self.gpus or 0) if processes_per_node is None else processes_per_node
        self.processes_per_node: int = check_count(
            processes, what="processes_per_node", least=1, most=MAX_PROCESSES
        )
        stem = (module or self.trainer.stem).removesuffix(".__main__").rpartition(".")[2]
        name = names.unique(stem) if name is None else name
        self.name = names.validate_name(name, kind="run", longest=names.MAX_RUN_NAME)
        settings = config.read()
        self.settings = dataclasses.replace(settings, image=check_image(image) or settings.image)
        if run_as_user is not None:
            check_count(run_as_user, what="run_as_user", least=0, most=MAX_USER)
        self.run_as_user = settings.run_as_user if run_as_user is None else run_as_user
        self.security = PodSecurity.of(self.run_as_user)
        needed = (self.remote.secret if self.remote else None, self.settings.pull_secret)
        self.secrets = tuple(filter(None, needed))
        self.labels: dict[str, str] = names.labels(run=self.name)

    @property
    def _workers(self) -> int:
        """The number of pods that train."""
        return self.nodes

    @property
    def _pods(self) -> int:
        """The number of pods that share the nodes."""
        return self._workers

    def bind(self, cluster: Cluster) -> Self:
        job = super().bind(cluster)
        if self.layout and not self.remote:
            literals = not self.workspace  # on one, a program's own files would be replaced
            named = find_referenced_files(
                self.layout, self.args, self.sources, folders=self.copies_files, literals=literals
            )
            local = cluster.provider == "local"
            job.sources, job.files = add_referenced_files(
                self.layout, self.sources, self.files, named, local=local
            )
        if not fits(job._carried):
            job.shared = cluster.share_files(job._carried, job.modes)
        job.node_resources = NodeResources.read(cluster, self.settings.tolerations)
        gpus = self.gpus
        if gpus is None:
            gpus = job.node_resources.gpus_of_each(self._workers, processes=self.processes_per_node)
        job.gpus, job.additions = gpus, cluster.pod_additions(gpus=gpus)
        return job

    @abstractmethod
    def _main(self) -> Object:
        """Build the object that makes the pods, before patches."""

    def build(self) -> list[Object]:
        """Build the ConfigMap with the trainer, and the main object."""
        return [self._config_map(), self._main()]

    def _read(self, kind: str, *, folder: str = "", file: Path | None = None) -> Object:
        """Read an object of ``manifests/``, or of a file, and give it the name and the labels of this run."""
        path = file or config.manifests(folder or self.folder, f"{kind}.yaml")
        documents = manifests.read(path)
        if file and [document["kind"].lower() for document in documents] != [kind]:
            kinds, fix = ", ".join(document["kind"] for document in documents), f"name a file with one {kind}"
            raise BadInput(f"this manifest has {kinds or 'nothing'}", about=str(path), fix=fix)
        return merge(documents[0], {"metadata": {"name": self.name, "labels": self.labels}})

    @property
    def _carried(self) -> Sources:
        """The files for the pods: the sources, and the program with which each rank answers `Run.why`."""
        return {**self.sources, **self.ranks}

    def _config_map(self) -> Object:
        """Build the ConfigMap with the trainer and the modules beside it that it imports."""
        check_size({} if self.shared else self.sources, about=f"trainer {self.trainer}")
        return self._read("configmap", folder="trainer") | data_of({} if self.shared else self._carried)

    def _pod_template(self, template: Object, **container: Any) -> Object:
        """Fill in a manifest's pod template.

        Args:
            template: With ``metadata`` and ``spec``; its one container has ``command``, the trainer last.
            container: More fields of the container.
        """
        (base,) = template["spec"]["containers"]
        self._drop_replaced(template["spec"])
        mounts = [mount for mount in base["volumeMounts"] if mount["mountPath"] not in self.volumes]
        base["volumeMounts"] = mounts
        spread = copy.deepcopy(template["spec"].get("topologySpreadConstraints", []))
        for constraint in spread:  # whatever the label, its value is the run
            labels = constraint["labelSelector"]["matchLabels"]
            labels.update(dict.fromkeys(labels, self.name))
        filled = {
            "image": self.image,
            "command": [*base["command"][:-1], *escape_dollars(self._target)],
            "args": escape_dollars(self.args),
            "env": self._with_environment(base.get("env", [])),
            "resources": self._resources,
            "volumeMounts": [*mounts, *self._mounts],
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
        pod = merge(pod, {"spec": self._copying()}) if self.files else pod
        return merge(pod, {"spec": self._fetching(self.remote, base["name"])}) if self.remote else pod

    def _copying(self) -> Object:
        """Build the init container that copies files into the working directory."""
        (init,) = self._read("files", folder="trainer")["spec"]["initContainers"]
        digest = hashlib.sha256(repr(sorted(self.sources.items())).encode()).hexdigest()[:16]
        folder = self.layout.folder if self.layout else "."
        words = escape_dollars([digest if self.workspace else "", folder, *self.files])
        mounts = [*init["volumeMounts"], *(mount for mount in self._mounts if mount["name"] == "workspace")]
        mounts = [*{mount["name"]: mount for mount in mounts}.values()]
        filled = {
            "image": self.image,
            "args": words,
            "volumeMounts": mounts,
            "resources": self._resources_beside,
        }
        return {"initContainers": [merge(init, filled)]}

    def _drop_replaced(self, spec: Object) -> None:
        """Remove volumes of a manifest that others replace: their fields may not be merged."""
        replaced = {"workspace": self.workspace, "trainer": self.shared}
        spec["volumes"] = [volume for volume in spec["volumes"] if not replaced.get(volume["name"])]

    def _fetching(self, source: Remote, container: str) -> Object:
        """Build the parts of a pod that fetch its trainer before its container starts."""
        spec = self._read("fetch", folder="trainer")["spec"]
        (init,) = spec["initContainers"]
        mounts, volumes = init["volumeMounts"], spec["volumes"]
        if source.claim:
            mounts = [*mounts, {"name": "source", "mountPath": SOURCE_VOLUME, "readOnly": True}]
            volumes = [*volumes, {"name": "source", "persistentVolumeClaim": {"claimName": source.claim}}]
        filled = {
            "image": self.image,
            "command": [*init["command"][:2], *escape_dollars([source.url]), *init["command"][3:]],
            "volumeMounts": mounts,
            "resources": self._resources_beside,
            "envFrom": [{"secretRef": {"name": source.secret}}] if source.secret else None,
        }
        carried, fetched = init["volumeMounts"]
        main = {"name": container, "volumeMounts": [carried, fetched | {"readOnly": True}]}
        return {"initContainers": [merge(init, filled)], "containers": [main], "volumes": volumes}

    @property
    def _path(self) -> str:
        """The trainer's path in the pods."""
        return f"{FOLDER}/{self.layout.name if self.layout else self.trainer.name}"

    @property
    def _target(self) -> list[str]:
        """What torchrun starts: the trainer, or its module."""
        module = self.layout.module if self.layout else ""
        return ["--module", module] if module else [self._path]

    @property
    def _resources(self) -> Object:
        """Requests and limits of each pod that trains."""
        return self._resources_of(self.cpu, self.memory, gpus=self.gpus or 0)

    @property
    def _resources_beside(self) -> Object:
        """Requests and limits of an init container; where a limit stands alone, it is the request as well."""
        resources = {
            kind: {k: v for k, v in values.items() if k != GPU} for kind, values in self._resources.items()
        }
        return resources | {"requests": {"cpu": "10m", "memory": "16Mi"} | resources["requests"]}

    def _resources_of(self, cpu: str | None, memory: str | None, *, gpus: int = 0) -> Object:
        """Requests and limits of a pod; with GPUs its CPU is not limited."""
        amounts = {"cpu": cpu, "memory": memory, GPU: str(gpus) if gpus else None}
        requests = {key: value for key, value in amounts.items() if value is not None}
        limit = self.node_resources.cpu_limit(self._pods, processes=self.processes_per_node)
        limits = {"cpu": limit} | requests
        if gpus:
            del limits["cpu"]
        return {"requests": requests, "limits": limits}

    def _with_environment(self, base: Sequence[Object]) -> list[Object]:
        """Add to a manifest's variables those of each pod that trains; the folders of PYTHONPATH add up."""
        place = "/trainyard/carried" if self.remote else FOLDER
        preset_names = {item["name"] for item in self.env} - {"PYTHONPATH"}
        preset = [item for item in (*base, *self._environment) if item["name"] not in preset_names]
        return with_path([*preset, *self.env], f"{place}/{RANKS_FOLDER}" if self.ranks else "")

    @property
    def _environment(self) -> list[Object]:
        """Variables of each pod that trains: modules, GPUs, the threads of processes that share its cores."""
        path = self.layout.python_path if self.layout else ""
        variables = [{"name": "PYTHONPATH", "value": path}] if path else []
        if self.gpus:
            return [*variables, {"name": GPU_COUNT, "value": str(self.gpus)}, NCCL_WARNINGS]
        if self.processes_per_node == 1:
            return [*variables, NO_GPUS]
        cores = parse_quantity(self._resources["limits"]["cpu"])
        threads = str(max(1, int(cores / self.processes_per_node)))
        return [*variables, NO_GPUS, *({"name": name, "value": threads} for name in THREADS)]

    @property
    def _tolerations(self) -> list[Object]:
        """Tolerations of the taints of GPU nodes on GKE and EKS, and of those in the settings."""
        return [*([GPU_TOLERATION] if self.gpus else []), *self.settings.tolerations]

    def _pod_additions(self) -> Object:
        """Merge the tolerations with the provider's additions to the pods' spec."""
        tolerations = [*self._tolerations, *self.additions.get("tolerations", [])]
        return {**self.additions, "tolerations": tolerations or None}

    @property
    def _pod_volumes(self) -> list[Object]:
        """The pods' volumes that differ from run to run."""
        claimed = [
            {"name": f"volume-{index}", "persistentVolumeClaim": {"claimName": claim}}
            for index, claim in enumerate(self.volumes.values())
        ]
        carried = volume_of(self._carried, name=self.name, modes=self.modes)
        source = {"name": "trainer", **self.shared} if self.shared else carried
        workspace = {"name": "workspace", "persistentVolumeClaim": {"claimName": self.workspace}}
        return [source, *claimed, *([workspace] if self.workspace else [])]

    @property
    def _mounts(self) -> list[Object]:
        """The containers' mounts of the requested volumes."""
        claimed = [{"name": f"volume-{index}", "mountPath": path} for index, path in enumerate(self.volumes)]
        workspace = {"name": "workspace", "mountPath": WORKSPACE, "subPath": f"runs/{self.name}"}
        return [*claimed, *([workspace] if self.workspace else [])]
