"""Serve a model by the manifests in manifests/serving, and record how many pods it has."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from kitlib import config
from kitlib.k8s import manifests
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects

NAME = "my-model"
Objects = dict[str, Any]


def apply(cluster: Any, path: str) -> None:
    """Apply a manifest with the image that the cluster's training pods have."""
    for item in manifests.read(config.find(path)):
        for container in item["spec"].get("template", {}).get("spec", {}).get("containers", ()):
            container["image"] = cluster.trainer_image()
        cluster.kube.apply(item)


def start_load(cluster: Any, rate: float, seconds: float = 60) -> None:
    """Start a Job that sends so many requests a second, in place of an earlier one."""
    (job,) = manifests.read(config.find("manifests/serving/load.yaml"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container |= {"image": cluster.trainer_image(), "args": [f"--rate={rate}", f"--seconds={seconds}"]}
    cluster.kubectl("delete job load --ignore-not-found")
    cluster.kube.apply(job)


def ask(address: str, prompt: str, tokens: object = 32) -> Objects:
    """Send one request to the model; return its answer, or what it says against the request."""
    body = json.dumps({"prompt": prompt, "tokens": tokens}).encode()
    try:
        with urllib.request.urlopen(f"http://{address}/generate", body, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return {"status": error.code} | json.load(error)


def replicas(deployment: Objects) -> tuple[int, int]:
    """Count the pods of a Deployment: requested, and ready."""
    return deployment["spec"]["replicas"], deployment["status"].get("readyReplicas", 0)


def ready(count: int) -> Callable[[pd.DataFrame], bool]:
    """Make a condition for `follow`: so many pods are requested, and ready."""
    return lambda table: tuple(table.iloc[-1][["requested", "ready"]]) == (count, count)


def lasts(seconds: float) -> Callable[[pd.DataFrame], bool]:
    """Make a condition for `follow`: the record is so many seconds long."""
    return lambda table: time.time() - table.time.iloc[0] >= seconds


def follow(cluster: Any, until: Callable[[pd.DataFrame], bool], timeout: float = 300) -> pd.DataFrame:
    """Record the Deployment and its autoscaler at each change, until a condition of the record holds.

    Returns:
        A row for each change: time, pods requested and ready, CPU in per cent of what they request.
    """
    rows: list[dict[str, float]] = []

    def note(state: dict[str, Objects]) -> bool:
        if (deployment := state["Deployment"].get(NAME)) is None:
            return False
        scalers = [item for item in state["HorizontalPodAutoscaler"].values() if uses(item)]
        metrics = [item for scaler in scalers for item in scaler["status"].get("currentMetrics") or ()]
        cpu = [
            item["resource"]["current"].get("averageUtilization") for item in metrics if "resource" in item
        ]
        requested, running = replicas(deployment)
        row = {"requested": requested, "ready": running, "cpu_percent": cpu[0] if cpu else None}
        if not rows or {**rows[-1], "time": 0} != {**row, "time": 0}:
            rows.append(row | {"time": time.time()})
        return until(pd.DataFrame(rows))

    specs = WatchSpec("Deployment"), WatchSpec("HorizontalPodAutoscaler")
    words = {"what": "the pods", "about": f"Deployment {NAME}", "resume": "run the cell again"}
    wait(watch_objects(cluster.kube, *specs), until=note, timeout=timeout, **words)
    return pd.DataFrame(rows)


def uses(scaler: Objects) -> bool:
    """Tell whether an autoscaler scales the model's Deployment."""
    return scaler["spec"]["scaleTargetRef"]["name"] == NAME


def answers(cluster: Any) -> pd.DataFrame:
    """List the answers that the load generator has had: time, seconds, pod."""
    lines = cluster.kubectl("logs job/load --tail=-1").splitlines()
    return pd.DataFrame([json.loads(line) for line in lines if line.startswith('{"event": "answer"')])


def compare(table: pd.DataFrame, answered: pd.DataFrame, predicted: float | None) -> pd.DataFrame:
    """Compare the predicted pods with the requested ones, and the first answers with the last ones."""
    grown = table[table.ready > 1].time.min()
    early, late = answered[~(answered.time >= grown)], answered[answered.time >= table.time.max() - 30]
    row = {"predicted": predicted, "most requested": table.requested.max()}
    row |= {"requested at the end": table.requested.iloc[-1]}
    row |= {"median s, one pod": early.seconds.median(), "median s, last 30 s": late.seconds.median()}
    return pd.DataFrame([row]).round(2)


def draw(table: pd.DataFrame, answered: pd.DataFrame, predicted: float | None) -> None:
    """Draw pods over time with what was predicted, and below it how long each answer took."""
    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(8, 4), layout="constrained")
    began, end = table.time.min(), max(table.time.max(), answered.time.max())
    steps = pd.concat([table, table.tail(1).assign(time=end)])
    above.step(steps.time - began, steps.requested, "--", where="post", color="grey", label="requested")
    above.step(steps.time - began, steps.ready, where="post", label="ready")
    if predicted is not None:
        above.axhline(predicted, color="tab:red", linewidth=1, label="predicted")
    above.set(ylabel="pods", ylim=(0, None))
    above.legend(loc="upper right", bbox_to_anchor=(1, 1.3), ncols=3, frameon=False)
    for _, part in answered.groupby("pod"):
        below.plot(part.time - began, part.seconds, "o", markersize=3)
    title = "a dot: an answer; its colour: the pod that answered"
    below.set(xlabel="s", ylabel="s for an answer", yscale="log")
    below.set_title(title, fontsize=10)
