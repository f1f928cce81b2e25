"""22: adapt a published GPU Job to two pods on nodes without GPUs. A dry run; nothing is created."""

from typing import Any

import yaml

from kitlib import config
from kitlib.clusters import Cluster
from kitlib.k8s.manifests import Object
from trainyard_kit.exercises.checklist import Exercise, NotYet, field, mapping
from trainyard_kit.exercises.manifests import add_manifest_checks, expect

PODS, GPU = 2, "nvidia.com/gpu"
STUB = yaml.safe_load(config.manifests("gke-indexed-job", "job.yaml").read_text("utf-8"))
EXERCISE = Exercise("job", "cluster", stub=STUB)
add_manifest_checks(EXERCISE, kind="Job", version="batch/v1")


@EXERCISE.check("its pods request no GPU")
def no_gpu(job: Object, cluster: Cluster) -> None:
    resources = _container(job).get("resources") or {}
    for name in ("limits", "requests"):
        if (resources.get(name) or {}).get(GPU):
            raise NotYet(f"resources.{name} still has {GPU}: remove it")


@EXERCISE.check("a node of this cluster matches its nodeSelector")
def node_selector(job: Object, cluster: Cluster) -> None:
    selector = (field(job, "spec.template.spec") or {}).get("nodeSelector") or {}  # type: ignore[attr-defined]
    labels = [node["metadata"].get("labels") or {} for node in cluster.kube.get_all("Node")]
    if not any(selector.items() <= node.items() for node in labels):
        raise NotYet(f"nodeSelector requires {selector}, and no node here has these labels")


@EXERCISE.check("two pods run at the same time")
def pod_count(job: Object, cluster: Cluster) -> None:
    expect(field(job, "spec.completions"), PODS, "spec.completions")
    expect(field(job, "spec.parallelism"), PODS, "spec.parallelism")


@EXERCISE.check("torchrun waits for two nodes")
def torchrun_nodes(job: Object, cluster: Cluster) -> None:
    container = _container(job)
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    text = " ".join(map(str, words)).replace("--nnodes ", "--nnodes=")
    nodes = [word.partition("=")[2] for word in text.split() if word.startswith("--nnodes")]
    expect(nodes, [f"{PODS}"], "torchrun's --nnodes")


def _container(job: Object) -> Any:
    return mapping(job, "spec.template.spec.containers.0")
