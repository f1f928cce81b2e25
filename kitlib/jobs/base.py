"""What all ways to train share: objects that can be seen, saved and patched; and launching them.

A job is data until it is launched; then a `Run` follows it. The shapes of the jobs are in the modules beside
this.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kitlib.clusters import Cluster, connect
from kitlib.config import DEFAULT_CLUSTER
from kitlib.errors import BadInput, KitError, LaunchRejected, Rejected, RunExists
from kitlib.jobs import priorities
from kitlib.k8s import manifests, names
from kitlib.k8s.api_errors import launch_rejected
from kitlib.k8s.client import Kube
from kitlib.k8s.job_kinds import KINDS
from kitlib.k8s.manifests import Manifest, Object, title
from kitlib.runs import run as runs
from kitlib.runs.run import Run


class Job(ABC):
    """A way to train, as Kubernetes objects.

    Contract: `build` returns the objects in the order in which they are created, the one that runs the pods
    last; all carry the kit's labels, and nothing in the cluster is touched before `launch`. ``claims`` are
    the PersistentVolumeClaims that have to be there, ``secrets`` the Secrets, ``priorities`` the
    PriorityClasses, of which `launch` makes those that the kit knows; ``additions`` is what a provider adds
    to the pods' spec, ``annotations`` what it wants to read on them.
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
        """Return the objects, before patches."""

    @property
    def objects(self) -> list[Object]:
        """The objects that `launch` creates."""
        *others, main = self.build()
        for patch in self.patches:
            main = manifests.merge(main, patch)
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
            raise BadInput(
                f"the manifest cannot be written: {error.strerror}",
                about=str(path),
                fix="give a path that you can write",
            ) from error
        return Path(path)

    def patch(self, overrides: Mapping) -> "Job":
        """Return a copy whose Job object has ``overrides`` merged into it; for all that is no argument.

        Dicts merge, None removes, lists of things with a name merge by it.

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
        """Return a copy as `launch` sends it there: with what the provider's nodes ask of pods.

        Example:
            >>> job.on(cluster).manifest("Job")
        """
        other = copy.copy(self)
        other.additions = cluster.pod_additions(gpus=getattr(self, "gpus", 0))
        other.annotations = cluster.pod_annotations(self.claims)
        return other

    def __repr__(self) -> str:
        return f'{type(self).__name__} "{self.name}": {", ".join(title(each) for each in self.objects)}'


def launch(job: Job, *, cluster: Cluster | str = DEFAULT_CLUSTER, replace: bool = False) -> Run:
    """Create a job's objects in a cluster and return the run.

    Args:
        job: The job.
        cluster: The cluster, or its name.
        replace: Delete an earlier run of this name first, and wait until its pods are gone.

    Raises:
        RunExists: A run of this name is there already.
        LaunchRejected: The API server refused an object; nothing was left behind.

    Example:
        >>> run = launch(IndexedJob("trainers/digits_ddp.py", nodes=4))
        >>> run.wait()
    """
    if not isinstance(job, Job):
        raise BadInput(
            "this is no job", about=repr(job), fix='kit.launch(kit.IndexedJob("trainers/digits_ddp.py"))'
        )
    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    kube, job = cluster.kube, job.on(cluster)
    objects = job.objects
    main = objects[-1]
    if replace:
        Run(kube, job.name).delete()
    elif runs.main(kube, job.name) is not None:
        raise RunExists(
            "a run of this name is there already",
            about=f'run "{job.name}" in cluster "{kube.cluster}"',
            fix="kit.launch(job, replace=True) deletes it first; or give this one another name=",
        )
    run = Run(kube, job.name, kind=main["kind"])
    _check_claims(kube, job)
    _check_secrets(kube, job)
    for each in job.priorities:
        priorities.ensure(kube, each)
    try:
        for index, each in enumerate(objects):  # all are checked before the first is made
            document = index
            kube.create(each, dry_run=True) if each is main else _create(kube, each, job.name, dry_run=True)
        for index, each in enumerate(objects):
            document = index
            kube.create(each) if each is main else _create(kube, each, job.name)
    except Rejected as error:
        run.delete()
        if objects[document] is main and error.status == 404:
            raise _not_installed(main, cluster=kube.cluster) from error
        raise launch_rejected(
            error, job.manifest(), document=document, fix=_fix(error, main, cluster=kube.cluster)
        ) from error
    except (KitError, KeyboardInterrupt):
        run.delete()
        raise
    return run


def _check_claims(kube: Kube, job: Job) -> None:
    """See that the volumes are there: pods would wait for them without end."""
    for claim in job.claims:
        if kube.find("PersistentVolumeClaim", claim) is None:
            raise BadInput(
                f'there is no volume "{claim}"',
                about=f'run "{job.name}" in cluster "{kube.cluster}"',
                fix=f'cluster.create_volume("{claim}"); cluster.volumes() lists those that there are',
            )


def _check_secrets(kube: Kube, job: Job) -> None:
    """See that the Secrets are there: pods would wait for them without end."""
    for secret in job.secrets:
        if kube.find("Secret", secret) is None:
            raise BadInput(
                f'there is no Secret "{secret}"',
                about=f'run "{job.name}" in cluster "{kube.cluster}"',
                fix=f"kubectl create secret generic {secret} --from-literal=AWS_ACCESS_KEY_ID=…\n"
                f"or, for an image: kubectl create secret docker-registry {secret} --docker-server=… "
                "--docker-username=… --docker-password=…",
            )


def _fix(error: Rejected, main: Object, *, cluster: str) -> str:
    operator = KINDS[main["kind"]].operator
    if operator and "failed calling webhook" in error.what:
        return f'its operator does not answer: kit.install("{operator}", cluster="{cluster}") mends that'
    return "mend what is named, in job.patch(…) or in the arguments; job.manifest() shows it all"


def _not_installed(main: Object, *, cluster: str) -> LaunchRejected:
    operator = KINDS[main["kind"]].operator
    return LaunchRejected(
        f"the cluster has no kind {main['kind']} in {main['apiVersion']}",
        about=f'{title(main)} in cluster "{cluster}"',
        fix=f'kit.install("{operator}", cluster="{cluster}") brings it',
    )


def _create(kube: Kube, item: Object, run: str, *, dry_run: bool = False) -> None:
    """Create an object, or take over one that an earlier run of the same name left behind."""
    old = kube.find(item["kind"], item["metadata"]["name"])
    if old is None:
        kube.create(item, dry_run=dry_run)
    elif (old["metadata"].get("labels") or {}).get(names.RUN) != run:
        raise RunExists(
            "something else has the name of this run",
            fix="give the run another name=",
            about=f'{title(old)} in cluster "{kube.cluster}"',
        )
    elif not dry_run:
        kube.delete(item["kind"], item["metadata"]["name"])
        kube.create(item)
