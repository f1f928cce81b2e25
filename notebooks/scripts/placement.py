"""Where the ranks of runs are, and when they train: rings over racks, pods that wait, and runs by team."""

import json
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kitlib.errors import KitError
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects

RACK, QUEUE, RUN = "cloud.provider.com/topology-rack", "kueue.x-k8s.io/queue-name", "trainyard/run"
IN_ONE_RACK = {"kueue.x-k8s.io/podset-required-topology": RACK}
RACKS = ("rack-a", "rack-b")
NEEDED = (
    "Cluster {}: {}. This notebook needs the local provider on a machine that allows namespaces: its nodes "
    "are in two racks, and the link between them has a limit (trainyard doctor). Go on with 16."
)


def check(cluster: Any) -> None:
    """End here, politely, where there are no two racks, or their link cannot have a limit.

    Raises:
        SystemExit: With nothing wrong: papermill takes that for a good end.
    """
    try:
        cluster.link(between=RACKS, bandwidth="1Gbit")
    except KitError as error:
        print(NEEDED.format(cluster.name, error.what))
        raise SystemExit(0) from None
    cluster.unlink()


def in_queue(job: Any, queue: str, *, one_rack: bool = True) -> Any:
    """Give a job the label of its queue, and its pods the annotation that requires one rack."""
    pods = {"metadata": {"annotations": IN_ONE_RACK}} if one_rack else {}
    return job.patch({"metadata": {"labels": {QUEUE: queue}}, "spec": {"template": pods}})


def join(cluster: Any, cohort: str | None) -> None:
    """Put the queues of both teams into a cohort, in which they lend; None takes them out of theirs."""
    patch = json.dumps({"spec": {"cohortName": cohort}})
    for team in ("team-a", "team-b"):
        cluster.kubectl(f"patch clusterqueue {team} --type=merge --patch '{patch}'")


def nodes(cluster: Any) -> dict[str, str]:
    """The rack of each node."""
    items = cluster.kube.get_all("Node")
    return {item["metadata"]["name"]: item["metadata"]["labels"][RACK] for item in items}


def places(run: Any) -> list[str]:
    """The node of each rank, in the order of the ranks."""
    rows = sorted(run.pods(), key=lambda row: row["rank"])
    return [row["node"] for row in rows]


def draw(cluster: Any, runs: list[Any]) -> Figure:
    """Draw each run's ring: ranks on their nodes, edges between ranks; those between racks are red."""
    racks = nodes(cluster)
    figure, row = plt.subplots(1, len(runs), figsize=(4.5 * len(runs), 2.3), squeeze=False)
    for axes, run in zip(row[0], runs, strict=True):
        _ring(axes, racks, places(run))
        axes.set_title(run.name, fontsize=10)
    figure.tight_layout()
    plt.close(figure)
    return figure


def _ring(axes: Axes, racks: dict[str, str], ranks: list[str]) -> None:
    left = {
        node: index + (racks[node] != min(racks.values())) * 0.6 for index, node in enumerate(sorted(racks))
    }
    for node, x in left.items():
        axes.add_patch(plt.Rectangle((x - 0.4, -0.5), 0.8, 2, facecolor="whitesmoke", edgecolor="grey"))
        axes.text(x, -0.75, node.removeprefix("node-"), ha="center", va="top", fontsize=8)
    for rack in sorted({*racks.values()}):
        own = [x for node, x in left.items() if racks[node] == rack]
        axes.text(sum(own) / len(own), 1.75, rack, ha="center", fontsize=9)
    points = [(left[node], float(ranks[:rank].count(node))) for rank, node in enumerate(ranks)]
    for rank, start in enumerate(points):
        crosses = racks[ranks[rank]] != racks[ranks[(rank + 1) % len(ranks)]]
        style = {
            "arrowstyle": "->",
            "color": "tab:red" if crosses else "tab:blue",
            "shrinkA": 9,
            "shrinkB": 9,
        }
        arrow = style | {"connectionstyle": "arc3,rad=-0.3", "linewidth": 1.5}
        axes.annotate("", points[(rank + 1) % len(points)], start, arrowprops=arrow)
        circle = {"boxstyle": "circle", "facecolor": "white"}
        axes.text(*start, str(rank), ha="center", va="center", bbox=circle, zorder=9)
    axes.set(xlim=(-0.6, max(left.values()) + 0.6), ylim=(-1.2, 2.2))
    axes.axis("off")


def pods(*runs: Any) -> pd.DataFrame:
    """Count the pods of each run by their status; a run that waits in its queue has none."""
    counts = {run.name: pd.Series([row["status"] for row in run.pods()]).value_counts() for run in runs}
    return pd.DataFrame(counts).fillna(0).astype(int)


def settle(cluster: Any, *runs: Any, count: int = 1) -> None:
    """Wait until that many of the runs have all of their pods, each of which runs or has no room."""
    names = {run.name for run in runs}

    def settled(state: dict[str, Any]) -> bool:
        complete = 0
        for job in state["Job"].values():
            if job["metadata"]["name"] in names and not job["spec"].get("suspend"):
                own = [pod for pod in state["Pod"].values() if pod["metadata"]["labels"].get(RUN) in names]
                own = [pod for pod in own if pod["metadata"]["labels"][RUN] == job["metadata"]["name"]]
                complete += len(own) == job["spec"]["parallelism"] and all(map(_decided, own))
        return complete >= count

    words = {"what": "the pods", "about": f'cluster "{cluster.name}"', "resume": "run the cell again"}
    states = watch_objects(cluster.kube, WatchSpec("Job"), WatchSpec("Pod"))
    wait(states, until=settled, timeout=120, **words)


def _decided(pod: dict[str, Any]) -> bool:
    """Tell whether a pod runs or has ended, or the scheduler has said that it has no room."""
    conditions = pod["status"].get("conditions") or ()
    no_room = any(item["type"] == "PodScheduled" and item["status"] == "False" for item in conditions)
    return no_room or pod["status"].get("phase") != "Pending"


def reason(cluster: Any, run: Any) -> Any:
    """Wait until Kueue has looked at a run that it does not admit; return `Run.why`."""
    uid = cluster.kube.get("Job", run.name)["metadata"]["uid"]
    workload = f"workloads.kueue.x-k8s.io --selector kueue.x-k8s.io/job-uid={uid} --timeout=60s"
    for condition in ("create", "condition=QuotaReserved=false"):
        cluster.kubectl(f"wait {workload} --for={condition}")
    return run.why()


def spans(submitted: list[tuple[Any, str, float]]) -> pd.DataFrame:
    """When each run was submitted, and its ranks started and ended: seconds after the first submission."""
    rows = []
    for run, team, moment in submitted:
        run.wait(timeout=300)
        starts, ends = run.metrics("start").time.min(), run.metrics("end").time.max()
        rows.append((run.name, team, moment, starts, ends))
    table = pd.DataFrame(rows, columns=["run", "team", "submitted", "starts", "ends"]).set_index("run")
    table[["submitted", "starts", "ends"]] -= table.submitted.min()
    return table


def timeline(tables: dict[str, pd.DataFrame]) -> Figure:
    """Draw tables of `spans` above each other: each run's wait in grey, its training in its team's colour."""
    last = max(table.ends.max() for table in tables.values())
    figure, rows = plt.subplots(len(tables), 1, figsize=(8, 1.7 * len(tables)), squeeze=False, sharex=True)
    for axes, (title, table) in zip(rows[:, 0], tables.items(), strict=True):
        colours = table.team.map({"team-a": "tab:blue", "team-b": "tab:orange"})
        axes.barh(table.index, table.starts - table.submitted, left=table.submitted, color="lightgrey")
        axes.barh(table.index, table.ends - table.starts, left=table.starts, color=colours)
        axes.axvline(table.ends.max(), color="black", linestyle="--", linewidth=1)
        axes.set_title(f"{title}: all have ended after {table.ends.max():.0f} s", fontsize=10, loc="left")
        axes.set_xlim(0, last * 1.03)
        axes.invert_yaxis()
    axes.set_xlabel("seconds (grey: waits in its queue)")
    figure.tight_layout()
    plt.close(figure)
    return figure
