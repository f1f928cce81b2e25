"""Rehearsal of a workshop on its cluster: capacity, images on the nodes, datasets, one training run, price.

Each check is a row with the seconds that it took; a row that is not ready says what to do. The images stay on
the nodes and the datasets on their volume, so the workshop starts with both. Whether the notebooks pass is
checked by `notebook_rehearsal`.
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

SOMEBODY = "rehearsal"  # an attendee who is deleted afterwards
PULL, PULL_SECONDS = "DaemonSet", 1800
READY, NOT_READY = "ready", "NOT READY"
COLUMNS = ("what", "seconds", "verdict", "found")


def rehearse(
    attendees: int = 10,
    *,
    cluster: Cluster | str = config.DEFAULT_CLUSTER,
    datasets: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
    images: Sequence[str] = (),
    hours: float = 4,
    **quota: object,
) -> Table:
    """Check that a cluster is ready for so many attendees; only images and datasets stay behind.

    Args:
        attendees: How many will come.
        cluster: The cluster, or its name.
        datasets: To be staged, as `create` has them.
        images: To be on every node beside that of the training.
        hours: How long the workshop lasts, for its price.
        quota: Of each, as `create` has it.

    Returns:
        A row for each step: what, seconds, verdict, what was found.

    Example:
        >>> kit.workshop.rehearse(attendees=30, cluster="workshop", datasets=["mnist"])
    """
    on = connect(cluster) if isinstance(cluster, str) else cluster
    limits = workshop.limits(quota)
    people = check_count(attendees, what="attendees", least=1, most=workshop.MAX_ATTENDEES)
    by_dataset = datasets if isinstance(datasets, Mapping) else {dataset: {} for dataset in datasets}
    rows: list[tuple[object, ...]] = []
    with progress("rehearsal") as line:
        with _step(rows, "capacity for all", line) as facts:
            capacity_now = capacity.survey(on, people, limits)
            facts += [
                "; ".join(capacity.ensure(on, capacity_now)),
                capacity_now is not None and capacity_now.enough,
            ]
        with _step(rows, "images on the nodes", line) as facts:
            facts.append(pull(on, dict.fromkeys([on.trainer_image(), *images])))
        if by_dataset:
            with _step(rows, "data for all", line) as facts:
                facts.append(staging.stage(on, by_dataset).said)
        with _step(rows, "one training, as an attendee", line) as facts:
            facts.append(_train(on, limits))
        with _step(rows, f"price of {hours:g} hours", line) as facts:
            more = (
                [capacity_now.pattern] * capacity_now.missing
                if capacity_now and capacity_now.pattern and capacity_now.missing
                else []
            )
            nodes = [*on.kube.get_all("Node"), *more]
            facts.append(price_table.describe_price(nodes, hours, at=on.provider, more=len(more)))
        line.done(READY if all(row[2] == READY for row in rows) else NOT_READY)
    return Table(COLUMNS, rows)


def ready(table: Table) -> bool:
    """Whether every step of a rehearsal was ready."""
    return all(row["verdict"] == READY for row in table)


@contextmanager
def _step(rows: list[tuple[object, ...]], what: str, line: Progress) -> Iterator[list[object]]:
    """Time a step; it appends its result to the list, and a KitError makes it NOT READY."""
    line.update(what)
    began = time.monotonic()
    facts: list[object] = []
    try:
        yield facts
    except KeyboardInterrupt:
        raise
    except KitError as error:
        facts = [f"{error.what}; try: {plain(error.fix)}", False]
    good = facts[1] if len(facts) > 1 else True
    rows.append((what, f"{time.monotonic() - began:.0f}", READY if good else NOT_READY, facts[0]))


def pull(on: Cluster, images: Sequence[str] | Mapping[str, object]) -> str:
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
        on.kube.apply(merge(item, overrides))
        snapshot = wait(
            watch_objects(on.kube, WatchSpec(PULL, fields=f"metadata.name={name}")),
            until=lambda snapshot: any(map(_pulled, snapshot[PULL].values())),
            timeout=PULL_SECONDS,
            what="the images to be on every node",
            about=f'{", ".join(images)} in cluster "{on.name}"',
            resume="`cluster.pods()` says why: a wrong name, a missing pull secret; then rehearse again",
            describe=lambda snapshot: "; ".join(map(_pulling, snapshot[PULL].values())),
        )
    finally:
        on.kube.delete(PULL, name)
    count = next(iter(snapshot[PULL].values()))["status"]["desiredNumberScheduled"]
    return f"{', '.join(images)}: on {count} nodes"


def _pulled(item: Object) -> bool:
    status = item.get("status") or {}
    current = status.get("observedGeneration") == item["metadata"]["generation"]
    return current and 0 < status.get("desiredNumberScheduled", 0) == status.get("numberReady", 0)


def _pulling(item: Object) -> str:
    status = item.get("status") or {}
    return f"{status.get('numberReady', 0)} of {status.get('desiredNumberScheduled', 0)} nodes have them"


def _train(on: Cluster, limits: Quota) -> str:
    """Train once with an attendee's kubeconfig, and describe the result."""
    attendee = namespaces.create(on.kube, SOMEBODY, quota=limits, hours=1)
    try:
        theirs = ExistingCluster(f"{SOMEBODY}-of-{on.name}"[:40].rstrip("-"), kubeconfig=attendee.kubeconfig)
        job = IndexedJob("trainers/digits_ddp.py", nodes=2, name=SOMEBODY, args={"epochs": 3})
        run = launch(job, cluster=theirs)
        run.wait()
        return f"two ranks, accuracy {run.metrics('eval').accuracy.iloc[-1]:.2f}"
    finally:
        namespaces.delete(on.kube, SOMEBODY)
