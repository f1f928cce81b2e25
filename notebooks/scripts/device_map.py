"""Who has which GPU: a table and a live picture of a cluster's ResourceSlices and ResourceClaims.

Works with the declared GPUs of local clusters, and with NVIDIA's DRA driver: both publish ``gpu.nvidia.com``.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from kitlib import Run, config
from kitlib.display.tables import Table
from kitlib.errors import KitError
from kitlib.k8s import manifests
from kitlib.k8s.quantities import parse_quantity
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects

DRIVER, HALF = "gpu.nvidia.com", "manifests/gpus/half.yaml"
NEEDED = (
    "The nodes of cluster {} publish no GPUs with MIG partitions, and this notebook is about them. It needs "
    "the local provider, on a machine without GPUs of its own, or nodes with A100s and NVIDIA's DRA driver "
    "(docs/gpus.md). Nothing was started: go on with 18."
)
Objects = dict[str, Any]
places: dict[tuple[str, str], float] = {}  # of a GPU's device: where its bar begins, while a pod has it


def check(cluster: Any) -> None:
    """End here, politely, where the cluster publishes no GPUs with partitions; say what it would take.

    Raises:
        SystemExit: With nothing wrong: papermill takes that for a good end.
    """
    try:
        table = devices(cluster)
    except KitError:  # a Kubernetes without DRA
        table = _rows([], {})
    if table.kind.isin(["1g.10gb", "3g.40gb"]).sum() == 0:
        print(NEEDED.format(cluster.name))
        raise SystemExit(0)


def devices(cluster: Any) -> pd.DataFrame:
    """List all devices: a row for each GPU and each partition, with the pod that has it."""
    claims = {item["metadata"]["name"]: item for item in cluster.kube.get_all("ResourceClaim")}
    return _rows(cluster.kube.get_all("ResourceSlice"), claims)


def _rows(slices: list[Objects], claims: Objects) -> pd.DataFrame:
    users = {}
    for claim in claims.values():
        status = claim.get("status") or {}
        pods = ", ".join(user["name"] for user in status.get("reservedFor") or ())
        for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ():
            users[result["pool"], result["device"]] = pods or claim["metadata"]["name"]
    rows = []
    for spec in (item["spec"] for item in slices if item["spec"]["driver"] == DRIVER):
        for device in spec.get("devices") or ():
            values = {name: next(iter(value.values())) for name, value in device["attributes"].items()}
            (consumed,) = [item["counters"] for item in device.get("consumesCounters") or [{"counters": {}}]]
            parts = [
                int(consumed.get(f"{part}-slices", {"value": 0})["value"]) for part in ("compute", "memory")
            ]
            gibibytes = round(parse_quantity(device["capacity"]["memory"]["value"]) / 2**30)
            kind, gpu = values.get("profile", "whole GPU"), values.get("parentUUID", values["uuid"])
            user = users.get((spec["pool"]["name"], device["name"]), "")
            rows.append((spec["nodeName"], device["name"], kind, *parts, gibibytes, user, gpu))
    names = ["node", "device", "kind", "compute", "memory", "GiB", "pod", "gpu"]
    return pd.DataFrame(rows, columns=names).sort_values(["node", "device"], ignore_index=True)


def draw(table: pd.DataFrame, waiting: list[str]) -> Figure:
    """Draw each GPU's memory, and which pods have it; pods that wait for a device are in the title."""
    wholes, in_use = table[table.kind == "whole GPU"], table[table.pod != ""]
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(wholes) + 1))
    pods = sorted({*in_use.pod})
    for key in places.keys() - {*zip(in_use.gpu, in_use.device, strict=True)}:
        del places[key]
    for row, whole in enumerate(wholes.itertuples()):
        axes.barh(row, whole.GiB, color="whitesmoke", edgecolor="grey")
        devices = in_use[in_use.gpu == whole.gpu]
        for used in devices.itertuples():
            left = places.get((used.gpu, used.device), _first_gap(devices, used.GiB))
            places[used.gpu, used.device] = left
            colour = plt.cm.tab20(pods.index(used.pod) % 20)
            axes.barh(row, used.GiB, left=left, color=colour, edgecolor="white")
            label = used.pod if used.kind == "whole GPU" else f"{used.kind}\n{used.pod[:8]}"
            axes.text(left + used.GiB / 2, row, label, ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(wholes)), [f"{gpu.node} {gpu.device}" for gpu in wholes.itertuples()])
    axes.invert_yaxis()
    axes.set_xlabel("GiB of each GPU (order in the bar: of no meaning)")
    axes.set_title(f"waiting: {', '.join(waiting) or 'none'}", fontsize=9, loc="left")
    figure.tight_layout()
    plt.close(figure)
    return figure


def _first_gap(table: pd.DataFrame, size: float) -> float:
    """Find where a bar of that size fits beside those that are drawn."""
    sizes = {(row.gpu, row.device): row.GiB for row in table.itertuples()}
    bars = [(places[key], places[key] + sizes[key]) for key in sizes.keys() & places.keys()]
    starts = sorted([0.0, *(end for _, end in bars)])
    return next(
        start for start in starts if all(start >= end or start + size <= begin for begin, end in bars)
    )


def condition(pod: Objects) -> Objects:
    """Get what the scheduler says about a pod."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] == "PodScheduled"), {})


def settled(pods: list[Objects]) -> bool:
    """Tell whether each pod runs, has ended, or waits because nothing is free for it."""
    return all(
        pod["metadata"].get("deletionTimestamp") is None
        and (pod["status"].get("phase") != "Pending" or condition(pod).get("status") == "False")
        for pod in pods
    )


def placed(pods: list[Objects]) -> bool:
    """Tell whether no pod waits any more."""
    return settled(pods) and not any(pod["status"].get("phase") == "Pending" for pod in pods)


def _complete(jobs: list[Objects], pods: list[Objects]) -> bool:
    """Tell whether each Job has created its pods, and the pods of deleted Jobs are gone."""
    references = [reference for pod in pods for reference in pod["metadata"].get("ownerReferences") or ()]
    counts = Counter(reference["uid"] for reference in references if reference["kind"] == "Job")
    needed = {
        job["metadata"]["uid"]: 0 if job["status"].get("conditions") else job["spec"]["parallelism"]
        for job in jobs
    }
    return counts.keys() <= needed.keys() and all(counts[uid] >= count for uid, count in needed.items())


def _wait(cluster: Any, until: Callable[[dict[str, Objects]], bool], timeout: float, *kinds: str) -> None:
    states = watch_objects(cluster.kube, *(WatchSpec(kind) for kind in kinds))
    words = {"what": "the devices", "about": f'cluster "{cluster.name}"', "resume": "run the cell again"}
    wait(states, until=until, timeout=timeout, **words)


def follow(cluster: Any, until: Callable[[list[Objects]], bool] = settled, timeout: float = 120) -> None:
    """Draw who has which GPU, at each change of a claim or a pod, until a condition of the pods holds."""
    handle = display(display_id=True)

    def show(state: dict[str, Objects]) -> bool:
        pods = list(state["Pod"].values())
        waiting = [pod["metadata"]["name"] for pod in pods if condition(pod).get("status") == "False"]
        handle.update(draw(devices(cluster), waiting))
        return _complete([*state["Job"].values()], pods) and until(pods)

    _wait(cluster, show, timeout, "ResourceClaim", "Pod", "Job")


def why_waiting(cluster: Any) -> Table:
    """List the pods that wait, with the scheduler's words, once it has judged all of them."""
    _wait(cluster, lambda state: settled([*state["Pod"].values()]), 120, "Pod")
    conditions = {pod["metadata"]["name"]: condition(pod) for pod in cluster.kube.get_all("Pod")}
    rows = [(name, item["message"]) for name, item in conditions.items() if item.get("status") == "False"]
    preemption = re.compile(r"\. [^.]*, preemption: .*")  # nothing here has a priority
    return Table(
        ("pod", "the scheduler says"), [(name, preemption.sub("", message)) for name, message in rows]
    )


def pod(template: str) -> Objects:
    """Make a pod that holds what a template requests, and has the template's name."""
    (job,) = [item for item in manifests.read(config.find(HALF)) if item["kind"] == "Job"]
    spec = job["spec"]["template"]["spec"]
    spec["resourceClaims"][0]["resourceClaimTemplateName"] = template
    return {"apiVersion": "v1", "kind": "Pod", "metadata": job["metadata"] | {"name": template}, "spec": spec}


def end_pods(cluster: Any) -> None:
    """Delete what this notebook has made, and wait until its devices are free."""
    label = "trainyard/notebook=17"
    pods = {item["metadata"]["name"] for item in cluster.kube.get_all("Pod", labels=label)}
    cluster.kubectl(f"delete jobs,pods,resourceclaimtemplates --selector {label} --ignore-not-found")
    for name in ("first", "second"):
        Run(cluster.kube, name).delete()

    def gone(state: dict[str, Objects]) -> bool:
        owners = [item["metadata"].get("ownerReferences") or () for item in state["ResourceClaim"].values()]
        return not any(owner["name"] in pods for references in owners for owner in references)

    _wait(cluster, gone, 120, "ResourceClaim")
