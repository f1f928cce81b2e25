"""Rehearsal of a workshop on its cluster: capacity, images on the nodes, datasets, one training run, cost.

Each check is a row with its duration, and a fix if it fails. Images and datasets are kept for the workshop.
`notebook_rehearsal` runs the notebooks.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kitlib import config
from kitlib.clusters import Cluster, connect
from kitlib.clusters.existing import ExistingCluster
from kitlib.display.progress import Progress, progress
from kitlib.display.tables import Table
from kitlib.errors import KitError, plain
from kitlib.jobs import IndexedJob, launch
from kitlib.k8s import manifests, names
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.quantities import check_count
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects
from trainyard_kit.clouds import price_table
from trainyard_kit.workshop import attendees as namespaces
from trainyard_kit.workshop import capacity, staging, workshop
from trainyard_kit.workshop.attendees import Quota

ATTENDEE = "rehearsal"  # deleted afterwards
PULL, PULL_SECONDS = "DaemonSet", 1800
READY, NOT_READY = "ready", "NOT READY"
COLUMNS = ("item", "seconds", "verdict", "details")


def rehearse(
    attendees: int = 10,
    *,
    cluster: Cluster | str = config.DEFAULT_CLUSTER,
    datasets: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
    images: Sequence[str] = (),
    hours: float = 4,
    **quota: object,
) -> Table:
    """Check whether a cluster is ready for a workshop; pulled images and staged datasets are kept.

    Args:
        attendees: Number of attendees.
        cluster: The cluster, or its name.
        datasets: Datasets to stage, as for `create`.
        images: Images to pull to every node, in addition to the trainer image.
        hours: Duration of the workshop, for its cost.
        quota: Of each attendee, as for `create`.

    Returns:
        A row for each step: what, seconds, verdict, details.

    Example:
        >>> kit.workshop.rehearse(attendees=30, cluster="workshop", datasets=["mnist"])
    """
    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    limits = workshop.limits(quota)
    check_count(attendees, what="attendees", least=1, most=workshop.MAX_ATTENDEES)
    by_dataset = datasets if isinstance(datasets, Mapping) else {dataset: {} for dataset in datasets}
    rows: list[tuple[object, ...]] = []
    with progress("rehearsal") as line:
        with _step(rows, "capacity for all", line) as facts:
            survey = capacity.survey(cluster, attendees, limits)
            facts += ["; ".join(capacity.ensure(cluster, survey)), survey is not None and survey.enough]
        with _step(rows, "images on the nodes", line) as facts:
            facts.append(pull(cluster, dict.fromkeys([cluster.trainer_image(), *images])))
        if by_dataset:
            with _step(rows, "data for all", line) as facts:
                facts.append(str(staging.stage(cluster, by_dataset)))
        with _step(rows, "one training run, as an attendee", line) as facts:
            facts.append(_train(cluster, limits))
        with _step(rows, f"cost of {hours:g} hours", line) as facts:
            pattern, missing = (survey.pattern, survey.missing) if survey else (None, None)
            added = [pattern] * missing if pattern and missing else []
            nodes = [*cluster.kube.get_all("Node"), *added]
            facts.append(price_table.describe_price(nodes, hours, at=cluster.provider, more=len(added)))
        line.done(READY if all(row[2] == READY for row in rows) else NOT_READY)
    return Table(COLUMNS, rows)


def ready(table: Table) -> bool:
    """Whether all steps of a rehearsal were ready."""
    return all(row["verdict"] == READY for row in table)


@contextmanager
def _step(rows: list[tuple[object, ...]], what: str, line: Progress) -> Iterator[list[object]]:
    """Time a step, which appends its details, and False if it is not ready; a KitError is NOT READY."""
    line.update(what)
    began = time.monotonic()
    facts: list[object] = []
    try:
        yield facts
    except KeyboardInterrupt:
        raise
    except KitError as error:
        facts = [f"{error.what}; try: {plain(error.fix)}", False]
    verdict = READY if len(facts) < 2 or facts[1] else NOT_READY
    rows.append((what, f"{time.monotonic() - began:.0f}", verdict, facts[0]))


def pull(cluster: Cluster, images: Sequence[str] | Mapping[str, object]) -> str:
    """Pull images to every node with a DaemonSet."""
    (item,) = manifests.read(config.manifests("workshop", "pull.yaml"))
    (first,) = item["spec"]["template"]["spec"]["containers"]
    containers = [{**first, "name": f"image-{index}", "image": image} for index, image in enumerate(images)]
    overrides = {
        "metadata": {"labels": names.labels()},
        "spec": {"template": {"spec": {"containers": containers}}},
    }
    name = item["metadata"]["name"]
    try:
        cluster.kube.apply(merge(item, overrides))
        snapshot = wait(
            watch_objects(cluster.kube, WatchSpec(PULL, fields=f"metadata.name={name}")),
            until=lambda snapshot: any(map(_is_complete, snapshot[PULL].values())),
            timeout=PULL_SECONDS,
            what="the images to be on every node",
            about=f'{", ".join(images)} in cluster "{cluster.name}"',
            resume="`cluster.pods()` shows the reason: a wrong name, a missing pull secret; then retry",
            describe=lambda snapshot: "; ".join(map(_describe, snapshot[PULL].values())),
        )
    finally:
        cluster.kube.delete(PULL, name)
    count = next(iter(snapshot[PULL].values()))["status"]["desiredNumberScheduled"]
    return f"{', '.join(images)}: on {count} nodes"


def _is_complete(item: Object) -> bool:
    status = item.get("status") or {}
    current = status.get("observedGeneration") == item["metadata"]["generation"]
    return current and 0 < status.get("desiredNumberScheduled", 0) == status.get("numberReady", 0)


def _describe(item: Object) -> str:
    status = item.get("status") or {}
    return f"{status.get('numberReady', 0)} of {status.get('desiredNumberScheduled', 0)} nodes have them"


def _train(cluster: Cluster, limits: Quota) -> str:
    """Train once with an attendee's kubeconfig; return the result."""
    attendee = namespaces.create(cluster.kube, ATTENDEE, quota=limits, hours=1)
    try:
        name = f"{ATTENDEE}-of-{cluster.name}"[:40].rstrip("-")
        connection = ExistingCluster(name, kubeconfig=attendee.kubeconfig)
        job = IndexedJob("trainers/digits_ddp.py", nodes=2, name=ATTENDEE, args={"epochs": 3})
        run = launch(job, cluster=connection)
        run.wait()
        return f"two ranks, accuracy {run.metrics('eval').accuracy.iloc[-1]:.2f}"
    finally:
        namespaces.delete(cluster.kube, ATTENDEE)
