"""Datasets on a volume: prepared there by a Job, or uploaded.

The Job runs the program in ``programs/dataset``, which downloads, verifies and unpacks, or draws synthetic
stand-ins where nothing can be downloaded. This module starts it, and shows its progress and its result.
"""

import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kitlib import config
from kitlib.datasets import image_folder
from kitlib.display.progress import Progress, progress
from kitlib.display.signatures import checked, checked_class
from kitlib.errors import BadInput, DatasetFailed, FileMissing
from kitlib.jobs.base import Job
from kitlib.jobs.launcher import launch
from kitlib.jobs.sources import content_of, data_of, escape_dollars
from kitlib.k8s import manifests, names
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.pod_security import PodSecurity
from kitlib.k8s.quantities import check_count
from kitlib.metrics import events
from kitlib.runs.logs import LogStream
from kitlib.runs.run import Run
from kitlib.storage import Volume, persistent_volume
from kitlib.storage.copy import inside

if TYPE_CHECKING:
    from kitlib.widgets.plots import Picture

NAMES = ("digits", "mnist", "cifar10", "tiny-imagenet-200")
WITH_RECORDS = ("digits", "mnist", "cifar10")
MOUNT = "/data"  # where the course's pods see the volume
PREPARE_SECONDS = 3600
SOURCES = {None: "auto", True: "synthetic", False: "real"}
# Variables of this process that the Job gets, to reach the network.
NETWORK_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "TRAINYARD_DATASET_MIRROR")
# A workshop's shared claim, its mount path, and the annotation that lists its datasets.
SHARED, SHARED_MOUNT, SHARED_NOTE = "workshop-datasets", "/datasets", "trainyard/datasets"
STAND_IN = "SYNTHETIC images, not the real ones"


@dataclass(frozen=True)
class Dataset:
    """A dataset that is complete on a volume.

    Attributes:
        name: ``cifar10``, or a name of your own.
        volume: The volume that has it, in the folder of its name.
        synthetic: Whether its images are stand-ins, because the real ones could not be downloaded.
        source: Its origin.
        classes: Names of the classes, by number.
        train_images: Number of images for training.
        test_images: Number of images for testing.
        records: Number of records for training and for testing beside the images; empty if there are none.

    Example:
        >>> dataset = kit.prepare_dataset("cifar10", volume=volume)
        >>> kit.IndexedJob(…, volumes=dataset.volumes, args={"data-dir": dataset.path})
    """

    name: str
    volume: Volume
    synthetic: bool
    source: str
    classes: tuple[str, ...]
    train_images: int
    test_images: int
    records: Mapping[str, int] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Its path in pods that mount `volumes`."""
        return f"{SHARED_MOUNT if self.volume.name == SHARED else MOUNT}/{self.name}"

    @property
    def volumes(self) -> dict[str, Volume]:
        """Mount path and volume for a job: ``/data``, or in a workshop the shared datasets.

        Example:
            >>> kit.IndexedJob(…, volumes={"/data": volume} | dataset.volumes)
        """
        return {SHARED_MOUNT if self.volume.name == SHARED else MOUNT: self.volume}

    def preview(self) -> "Picture":
        """Plot some of its images, each under its class."""
        import numpy  # half a second with what follows

        from kitlib.widgets import plots

        packed = io.BytesIO(self.volume.read(f"{self.name}/sample.npz"))
        with numpy.load(packed, allow_pickle=False) as sample:
            images, labels = sample["images"], sample["labels"].tolist()
        return plots.plot_images(images, labels, title=self.name, synthetic=self.synthetic)

    def __repr__(self) -> str:
        counted = f"{self.train_images:,} images for training, {self.test_images:,} for testing"
        location = f'{self.path} on volume "{self.volume.name}", from {self.source}'
        about = f"{counted}, {len(self.classes)} classes; {location}"
        return f'Dataset "{self.name}": {about}' + (f". {STAND_IN.upper()}" if self.synthetic else "")

    def _repr_html_(self) -> str:
        kind, _, about = repr(self).partition('"')
        name, _, about = about.partition('": ')
        warning = f". <b>{escape(STAND_IN)}</b>" if self.synthetic else ""
        return f"<b>{kind}</b><code>{escape(name)}</code>: {escape(about.partition('. SYNTH')[0])}{warning}"


@checked_class
class DatasetJob(Job):
    """The Job that prepares a dataset; `prepare_dataset` launches it and shows its progress.

    Args:
        dataset: One of :data:`NAMES`.
        volume: The volume to put it on.
        synthetic: True draws stand-ins, False insists on the real images, None prefers the real ones.
        limit: Maximum number of stand-ins for training.
        records: Write records as well, which the parameter server's workers read by range.
        folder: The folder of the volume in which the dataset gets its own; by default the root.
        name: Name of the run.
    """

    def __init__(
        self,
        dataset: str,
        *,
        volume: Volume | str,
        synthetic: bool | None = None,
        limit: int | None = None,
        records: bool = False,
        folder: str = "",
        name: str | None = None,
    ) -> None:
        if dataset not in NAMES:
            raise BadInput("unknown dataset", about=repr(dataset), fix=f"one of {', '.join(NAMES)}")
        if synthetic not in (None, True, False):
            raise BadInput("synthetic is True, False or None", about=repr(synthetic), fix="`synthetic=None`")
        if limit is not None:
            check_count(limit, what="limit", least=10, most=100_000)
        if records and dataset not in WITH_RECORDS:
            what = "its images cannot be converted to records, which all have one size"
            raise BadInput(what, about=repr(dataset), fix=f"one of {', '.join(WITH_RECORDS)}")
        self.dataset, self.synthetic, self.limit, self.records = dataset, synthetic, limit, records
        self.root: str = f"{MOUNT}/{inside(folder, what='folder')}".rstrip("/")
        self.environment: dict[str, str] = network_variables(os.environ)
        self.claims = (volume if isinstance(volume, str) else volume.name,)
        name = names.unique(f"prepare-{dataset}") if name is None else name
        self.name = names.validate_name(name, kind="run", longest=names.MAX_RUN_NAME)
        self.settings = config.read()
        self.run_as_user = self.settings.run_as_user
        self.security = PodSecurity.of(self.run_as_user)
        self.secrets = tuple(filter(None, [self.settings.pull_secret]))
        self.labels: dict[str, str] = names.labels(run=self.name)

    def build(self) -> list[Object]:
        """Build the ConfigMap with the program, and the Job."""
        own = {"metadata": {"name": self.name, "labels": self.labels}}
        (program,) = manifests.read(config.manifests("trainer", "configmap.yaml"))
        (job,) = manifests.read(config.manifests("dataset", "job.yaml"))
        (container,) = job["spec"]["template"]["spec"]["containers"]
        folder = config.DATA / "programs" / "dataset"
        files = {path.name: content_of(path) for path in sorted(folder.iterdir()) if path.is_file()}
        program |= data_of(files)
        pod = {
            "containers": [merge(container, self._container(container["env"]))],
            "volumes": [
                {"name": "program", "configMap": {"name": self.name}},
                {"name": "volume", "persistentVolumeClaim": {"claimName": self.claims[0]}},
            ],
            "imagePullSecrets": self.settings.pull_secrets,
            **self.additions,
        }
        meta = {"labels": self.labels, "annotations": dict(self.annotations) or None}
        template = {"metadata": meta, "spec": pod}
        return [merge(program, own), merge(merge(job, own), {"spec": {"template": template}})]

    def _container(self, env: list[Object]) -> Object:
        more = [] if self.limit is None else [f"--limit={self.limit}"]
        more += ["--records"] if self.records else []
        return {
            "image": self.image,
            "args": escape_dollars(
                [self.dataset, f"--root={self.root}", f"--source={SOURCES[self.synthetic]}", *more]
            ),
            "env": [*env, *({"name": key, "value": value} for key, value in self.environment.items())],
        }


def network_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Select the variables by which a pod reaches proxies and mirror as this process does."""
    return {key: value for key, value in environment.items() if key.upper() in NETWORK_VARIABLES and value}


@checked
def prepare_dataset(
    name: str,
    *,
    volume: Volume,
    synthetic: bool | None = None,
    limit: int | None = None,
    records: bool = False,
    timeout: float = PREPARE_SECONDS,
) -> Dataset:
    """Prepare a dataset on a volume; an existing one that fits the arguments is reused.

    In a workshop with a shared copy, that copy is used, whatever the volume: mount
    `Dataset.volumes` in pods.

    Args:
        name: ``digits``, ``mnist``, ``cifar10`` or ``tiny-imagenet-200``.
        volume: The volume to put it on.
        synthetic: True draws stand-in images of the same format, False insists on the real ones; by
            default the real ones, or stand-ins, with a notice, if they cannot be reached.
        limit: Number of stand-ins to draw for training; by default as many as real images.
        records: Write records, too, for `ParameterServer`: one file each for training and testing.
        timeout: Seconds.

    Raises:
        DatasetFailed: The checksum was wrong, the volume is full, or the real images cannot be reached.
        WaitTimeout: It took longer; the Job goes on.

    Example:
        >>> kit.prepare_dataset("cifar10", volume=cluster.create_volume("shared"))
    """
    job = DatasetJob(name, volume=volume, synthetic=synthetic, limit=limit, records=records)
    with progress(f"dataset {name}") as line:
        description = _existing(job, volume)
        if description is None:
            line.update("starting the Job that prepares it")
            run = launch(job, cluster=volume.cluster)
            description = _dataset(volume, _follow(run, line, timeout))
        line.done(STAND_IN.upper() if description.synthetic else f"real images, from {description.source}")
    return description


def _existing(job: DatasetJob, volume: Volume) -> Dataset | None:
    """Find a dataset that is complete and fits what a job would prepare."""
    for place, existing in _places(volume, job.dataset, records=job.records):
        if existing is None or (job.records and "records" not in existing):
            continue
        # The instructor has chosen the number of stand-ins of a shared dataset.
        enough = job.limit if place is volume else existing.get("limit")
        if _suits(existing, job.synthetic, enough):
            return _dataset(place, existing)
    return None


@checked
def upload_image_folder(path: str | Path, *, volume: Volume, name: str | None = None) -> Dataset:
    """Upload your own images, one folder for each class, as a dataset.

    The folder has a folder for each class, or ``train`` and ``val`` (or ``test``), each with such
    folders. An earlier upload of this name is replaced.

    Args:
        path: The folder.
        volume: The volume to put it on.
        name: Name of the dataset; by default the folder's.

    Raises:
        BadInput: It has no images in folders of classes, or one that cannot be read.

    Example:
        >>> kit.upload_image_folder("my-pictures", volume=volume, name="pets")
    """
    folder = image_folder.read(Path(path).expanduser())
    name = names.validate_name(name or names.slug(folder.path.name), kind="dataset")
    description = {
        "name": name,
        "synthetic": False,
        "source": str(folder.path.name),
        "classes": folder.classes,
        "train_images": folder.train,
        "test_images": folder.test,
    }
    more = {"sample.npz": folder.sample(), "dataset.json": json.dumps(description, indent=1).encode()}
    volume.upload(folder.path, to=name, replace=True, more=more)
    return _dataset(volume, description)


def _places(volume: Volume, name: str, *, records: bool) -> Iterator[tuple[Volume, dict[str, Any] | None]]:
    """List the volumes that may have a dataset, with its description: in a workshop, the shared one first.

    Jobs that read records write a model beside them, so they use a volume of their own.
    """
    private = volume.name == SHARED or records
    if not private and (claim := persistent_volume.find_shared(volume.cluster.kube, SHARED)):
        note = (claim["metadata"].get("annotations") or {}).get(SHARED_NOTE, "{}")
        yield Volume(volume.cluster, SHARED), json.loads(note).get(name)
    yield volume, description_of(volume, name)


def description_of(volume: Volume, name: str) -> dict[str, Any] | None:
    """Read the description of a dataset on a volume; None if it is missing or incomplete."""
    try:
        return json.loads(volume.read(f"{name}/dataset.json"))
    except (FileMissing, ValueError):
        return None


def _suits(description: Mapping[str, Any], synthetic: bool | None, limit: int | None) -> bool:
    if not description["synthetic"]:
        return not synthetic or description["name"] == "digits"
    enough = description.get("limit") is None or (limit is not None and description["limit"] >= limit)
    return synthetic is not False and enough


def _follow(run: Run, line: Progress, timeout: float) -> dict[str, Any]:
    """Show the Job's progress until it has ended, and return its description of the dataset."""
    fields: Mapping[str, Any] = {}
    stream = LogStream(run.objects, run.log_cache, rank=0, timeout=timeout, part_of=line.update)
    for event in events.parse(stream):
        fields = event.fields
        if event.event == "end":
            return dict(fields)
        if event.event == "error":
            raise _failed(run, str(fields["message"]))
        if words := _status_line(event.event, fields):
            line.update(words)
    run.wait(timeout=timeout)  # its pod was killed and restarts; or its traceback explains the failure
    return _last(run)


def _last(run: Run) -> dict[str, Any]:
    ends = run.metrics("end")
    if not len(ends):
        raise _failed(run, "its log has been lost")
    return ends.iloc[-1].to_dict()


def _status_line(event: str, fields: Mapping[str, Any]) -> str:
    if event == "source":
        return f"{'reached' if fields['reached'] else 'not reached:'} {fields['url']} {fields.get('why', '')}"
    if event == "synthetic":
        return f"{STAND_IN}: {fields['why']}"
    if event != "progress":
        return ""
    percent = "" if fields.get("percent") is None else f", {fields['percent']:.0f} %"
    rate = f", {fields['mb_per_s']} MB/s" if "mb_per_s" in fields else ""
    return f"{fields['doing']}{percent}{rate}"


def _failed(run: Run, message: str) -> DatasetFailed:
    fixes = {
        "the volume": "create a larger volume, or delete files from this one",
        "wrong checksum": "set TRAINYARD_DATASET_MIRROR to the address of a folder that has the right files",
        "no source": "set HTTPS_PROXY or TRAINYARD_DATASET_MIRROR, or pass `synthetic=True`",
    }
    fix = next((fix for start, fix in fixes.items() if message.startswith(start)), "`run.logs()` shows why")
    return DatasetFailed(message, about=f'run "{run.name}" in cluster "{run.kube.cluster}"', fix=fix)


def _dataset(volume: Volume, description: Mapping[str, Any]) -> Dataset:
    return Dataset(
        name=description["name"],
        volume=volume,
        synthetic=bool(description["synthetic"]),
        source=description["source"],
        classes=tuple(description["classes"]),
        train_images=int(description["train_images"]),
        test_images=int(description["test_images"]),
        records=dict(description.get("records") or {}),
    )
