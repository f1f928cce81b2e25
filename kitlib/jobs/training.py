"""A training program on several nodes, as pods: what all ways to train have in common.

The program travels in a ConfigMap; torchrun starts it. Which object makes the pods, and who tells the ranks
where the others are, is in the modules beside this.
"""

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from kitlib import config
from kitlib.errors import BadInput
from kitlib.jobs.base import Job
from kitlib.jobs.sources import Remote, remote, sources
from kitlib.k8s import manifests, names
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import check_count, check_quantity, parse_quantity

MOST_NODES, MOST_PROCESSES, MOST_GPUS = 1000, 256, 16
GPU = "nvidia.com/gpu"
FOLDER = "/trainyard/trainer"
FETCH = config.DATA / "trainers" / "fetch_trainer.py"
SOURCE_VOLUME = "/trainyard/source"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # torch asks the second first
OWN_PATHS = ("/trainyard", "/workspace", "/dev")


class TrainingJob(Job):
    """A training program on several nodes, one pod each.

    Args:
        trainer: Path of a Python file, as seen from here or from the root of the repository. It travels in a
            ConfigMap, with the modules beside it that it imports; torchrun starts it. Or an address from
            which pods fetch it: ``s3://bucket/code/main.py``, ``gs://…``, ``volume://shared/code/main.py``.
        nodes: How many pods, each on a node of its own as far as there are nodes.
        processes_per_node: Processes that torchrun starts in each pod; by default one for each GPU, or one.
        args: Flags of the trainer: ``{"epochs": 3, "amp": True}`` or ``["--epochs=3", "--amp"]``.
        volumes: What the pods see where: ``{"/data": cluster.volume("shared")}``, or a volume's name.
        cpu: Cores of each pod, such as 0.5 or "500m"; by default at most one for each process, and whatever
            is free.
        memory: Memory of each pod, such as "2Gi"; by default not limited.
        gpus: GPUs of each pod.
        priority: The pods' PriorityClass: ``low`` gives way to others, ``high`` takes the place of such pods.
            These two are made if they are not there; by default the pods have the cluster's usual one.
        source_secret: A Secret with what fetching a trainer needs, as environment variables, if that is not
            the pods' own identity: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL`` …
        image: Of the pods, with torch in it; by default ``TRAINYARD_IMAGE``, or PyTorch's official one.
        pull_secret: The Secret by which nodes may pull it; by default ``TRAINYARD_PULL_SECRET``, or none.
        name: Name of the run; by default made from the trainer's, and unique.

    Raises:
        BadInput: The trainer is missing, too large or no Python; or another argument cannot be used.
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
        self.nodes = check_count(nodes, what="nodes", least=1, most=MOST_NODES)
        self.args = flags(args)
        self.volumes = _claims(volumes or {})
        own = (self.remote.claim,) if self.remote and self.remote.claim else ()
        self.claims = tuple(dict.fromkeys([*self.volumes.values(), *own]))
        self.cpu = check_quantity(cpu, what="cpu", example="0.5")
        self.memory = check_quantity(memory, what="memory", example='"2Gi"')
        self.gpus = check_count(gpus, what="gpus", least=0, most=MOST_GPUS)
        self.priorities = () if priority is None else (names.validate_name(priority, kind="priority class"),)
        self.processes_per_node = (
            max(1, self.gpus)
            if processes_per_node is None
            else check_count(processes_per_node, what="processes_per_node", least=1, most=MOST_PROCESSES)
        )
        self.name = (
            names.unique(self.trainer.stem)
            if name is None
            else names.validate_name(name, kind="run", longest=names.MAX_RUN_NAME)
        )
        self.settings = _images(config.read(), image, pull_secret)
        needed = (self.remote.secret if self.remote else None, self.settings.pull_secret)
        self.secrets = tuple(filter(None, needed))
        self.labels = names.labels(
            run=self.name, workshop=self.settings.workshop, lifetime=self.settings.lifetime
        )

    @abstractmethod
    def main(self) -> Object:
        """Return the object that makes the pods, before patches."""

    def build(self) -> list[Object]:
        """Return the ConfigMap with the trainer, and the object that makes the pods."""
        return [self.config_map(), self.main()]

    def read(self, kind: str, *, folder: str = "") -> Object:
        """Return an object of ``manifests/``, with the name and the labels of this run."""
        (item,) = manifests.read(config.manifests(folder or self.folder, f"{kind}.yaml"))
        return merge(item, {"metadata": {"name": self.name, "labels": self.labels}})

    def config_map(self) -> Object:
        """Return what carries the trainer to the pods, with the modules beside it that it imports."""
        return self.read("configmap", folder="trainer") | {"data": self.sources}

    def pod(self, template: Object, **container: object) -> Object:
        """Return a manifest's pod template, filled in.

        Args:
            template: With ``metadata`` and ``spec``; its one container has ``command``, the trainer last.
            container: What else is patched in the container.
        """
        (there,) = template["spec"]["containers"]
        spread = copy.deepcopy(template["spec"]["topologySpreadConstraints"])
        for each in spread:  # whatever label the manifest goes by, its value is the run
            chosen = each["labelSelector"]["matchLabels"]
            chosen.update(dict.fromkeys(chosen, self.name))
        filled = {
            "image": self.settings.image,
            "command": [*there["command"][:-1], self.path],
            "args": self.args,
            "env": [*there.get("env", []), *self.environment],
            "resources": self.resources,
            "volumeMounts": [*there["volumeMounts"], *self.mounts],
        }
        additions = dict(self.additions)
        tolerations = [*self.tolerations, *additions.pop("tolerations", [])]
        spec = {
            "topologySpreadConstraints": spread,
            "containers": [merge(merge(there, filled), {"name": there["name"], **container})],
            "volumes": self.pod_volumes,
            "tolerations": tolerations or None,
            "priorityClassName": self.priorities[0] if self.priorities else None,
            "imagePullSecrets": self.settings.pull_secrets,
            **additions,
        }
        meta = {"labels": self.labels, "annotations": dict(self.annotations) or None}
        filled = merge(template, {"metadata": meta, "spec": spec})
        return merge(filled, {"spec": self._fetched(self.remote, there["name"])}) if self.remote else filled

    def _fetched(self, source: Remote, container: str) -> Object:
        """Return what a pod has besides, so that its trainer is fetched before its container starts."""
        spec = self.read("fetch", folder="trainer")["spec"]
        (there,) = spec["initContainers"]
        url = f"{source.scheme}://{source.place}/{source.key}"
        mounts, volumes = there["volumeMounts"], spec["volumes"]
        if source.claim:
            mounts = [*mounts, {"name": "source", "mountPath": SOURCE_VOLUME, "readOnly": True}]
            volumes = [*volumes, {"name": "source", "persistentVolumeClaim": {"claimName": source.claim}}]
        own = {
            "name": there["name"],
            "image": self.settings.image,
            "command": [*there["command"][:2], url, *there["command"][3:]],
            "volumeMounts": mounts,
            "envFrom": [{"secretRef": {"name": source.secret}}] if source.secret else None,
        }
        carried, fetched = there["volumeMounts"]
        seen = {"name": container, "volumeMounts": [carried, fetched | {"readOnly": True}]}
        return {"initContainers": [merge(there, own)], "containers": [seen], "volumes": volumes}

    @property
    def path(self) -> str:
        """Where the trainer lies in the pods."""
        return f"{FOLDER}/{self.trainer.name}"

    @property
    def resources(self) -> Object:
        """What each pod asks for, and is held to."""
        asked = {"cpu": self.cpu, "memory": self.memory, GPU: str(self.gpus) if self.gpus else None}
        asked = {key: value for key, value in asked.items() if value is not None}
        return {"requests": asked, "limits": {"cpu": str(self.processes_per_node)} | asked}

    @property
    def environment(self) -> list[Object]:
        """Threads of each process, where processes share a pod: together as many as the pod may use cores."""
        if self.processes_per_node == 1:
            return []
        cores = parse_quantity(self.resources["limits"]["cpu"])
        threads = str(max(1, int(cores / self.processes_per_node)))
        return [{"name": name, "value": threads} for name in THREADS]

    @property
    def tolerations(self) -> list[Object]:
        """What lets pods onto GPU nodes, as GKE and EKS mark them, and onto those that the settings name."""
        gpu = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
        return [*([gpu] if self.gpus else []), *self.settings.tolerations]

    @property
    def pod_volumes(self) -> list[Object]:
        """The pods' volumes that differ from run to run."""
        claimed = [
            {"name": f"volume-{index}", "persistentVolumeClaim": {"claimName": claim}}
            for index, claim in enumerate(self.volumes.values())
        ]
        return [{"name": "trainer", "configMap": {"name": self.name}}, *claimed]

    @property
    def mounts(self) -> list[Object]:
        """Where the containers see the volumes that were asked for."""
        return [{"name": f"volume-{index}", "mountPath": path} for index, path in enumerate(self.volumes)]


def _images(given: config.Settings, image: str | None, pull_secret: str | None) -> config.Settings:
    """Return the settings with the image, and the Secret for it, of one job."""
    for word, value in (("image", image), ("pull_secret", pull_secret)):
        if value is not None and (not isinstance(value, str) or not value or len(value.split()) != 1):
            raise BadInput(
                f"{word} is a name",
                about=f"{word}={value!r}",
                fix='image="registry.example/mine:1", or leave it out',
            )
    return replace(given, image=image or given.image, pull_secret=pull_secret or given.pull_secret)


def flags(args: Mapping | Sequence) -> list[str]:
    """Return a trainer's flags as a command line's words.

    Example:
        >>> flags({"epochs": 3, "log_every": 5, "amp": True, "resume": None})
        ['--epochs=3', '--log-every=5', '--amp']

    Raises:
        BadInput: It is neither a dict nor a list.
    """
    if isinstance(args, Mapping):
        words = [
            f"--{str(key).replace('_', '-')}" + ("" if value is True else f"={value}")
            for key, value in args.items()
            if value is not None and value is not False
        ]
    elif isinstance(args, Sequence) and not isinstance(args, str | bytes):
        words = [str(each) for each in args]
    else:
        raise BadInput(
            "a trainer's arguments are a dict or a list", about=f"args={args!r}", fix='args={"epochs": 3}'
        )
    return [word.replace("$(", "$$(") for word in words]  # or Kubernetes would expand it


def _claims(volumes: Mapping[str, object]) -> dict[str, str]:
    """Return path -> name of the claim.

    Raises:
        BadInput: A path is not absolute or is taken, or what it leads to has no name.
    """
    example = 'volumes={"/data": "shared"}'
    if not isinstance(volumes, Mapping):
        raise BadInput("volumes are a dict: path -> volume", about=f"volumes={volumes!r}", fix=example)
    found = {}
    for path, volume in volumes.items():
        if not isinstance(path, str) or not path.startswith("/") or path == "/" or ":" in path:
            raise BadInput("a volume is mounted at an absolute path", about=repr(path), fix=example)
        if any(path == own or path.startswith(f"{own}/") for own in OWN_PATHS):
            raise BadInput("the pods have something of their own there", about=repr(path), fix=example)
        name = volume if isinstance(volume, str) else getattr(volume, "name", None)
        found[path] = names.validate_name(name, kind="volume")
    return found
