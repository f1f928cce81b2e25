"""19: autoscale the served model at half of the CPU that its pods request. A dry run."""

from collections.abc import Mapping
from typing import Any

from kitlib.clusters import Cluster
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import parse_quantity
from trainyard_kit.exercises.checklist import Exercise, NotYet, describe, field, mapping
from trainyard_kit.exercises.manifests import check_kind, check_label, dry_run, expect

NAME, CONTAINER, REQUEST = "my-model", "server", 0.2  # of manifests/serving/deployment.yaml
PERCENT, MIN_REPLICAS, MAX_REPLICAS = 50, 1, 8
KIND = {"kind": "HorizontalPodAutoscaler", "metadata": {"name": NAME, "labels": {"trainyard/notebook": "19"}}}
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}
SPEC = {"scaleTargetRef": TARGET, "maxReplicas": "TODO", "metrics": ["TODO"]}
EXERCISE = Exercise("autoscaler", "cluster", stub={"apiVersion": "autoscaling/v2", **KIND, "spec": SPEC})


@EXERCISE.check("it is a HorizontalPodAutoscaler", essential=True)
def kind(autoscaler: Object, cluster: Cluster) -> None:
    version = autoscaler.get("apiVersion") if isinstance(autoscaler, dict) else None
    known = version if version == "autoscaling/v1" else "autoscaling/v2"  # v1 supports CPU only
    check_kind(autoscaler, kind="HorizontalPodAutoscaler", version=known)


@EXERCISE.check("the API server accepts it (a dry run)", essential=True)
def accepted(autoscaler: Object, cluster: Cluster) -> None:
    dry_run(cluster, autoscaler)


@EXERCISE.check("it scales the Deployment")
def target(autoscaler: Object, cluster: Cluster) -> None:
    reference = mapping(autoscaler, "spec.scaleTargetRef")
    for name, value in TARGET.items():
        expect(reference.get(name), value, f"spec.scaleTargetRef.{name}")


@EXERCISE.check("from one pod to eight")
def replica_bounds(autoscaler: Object, cluster: Cluster) -> None:
    spec = mapping(autoscaler, "spec")
    least = spec.get("minReplicas")
    expect(MIN_REPLICAS if least is None else least, MIN_REPLICAS, "spec.minReplicas")
    expect(spec.get("maxReplicas"), MAX_REPLICAS, "spec.maxReplicas")


@EXERCISE.check("at half of the CPU that its pods request")
def metric(autoscaler: Object, cluster: Cluster) -> None:
    spec = mapping(autoscaler, "spec")
    if autoscaler["apiVersion"] == "autoscaling/v1":
        percent = spec.get("targetCPUUtilizationPercentage")
        expect(percent, PERCENT, "spec.targetCPUUtilizationPercentage")
        return
    metrics = spec.get("metrics") or []
    if len(metrics) != 1:
        why = ": the largest result decides" if metrics else ""
        raise NotYet(f"spec.metrics has {len(metrics)} entries, and should have only CPU{why}")
    kind = metrics[0]["type"]
    source = {"Resource": "resource", "ContainerResource": "containerResource"}.get(kind)
    if source is None:
        raise NotYet(f"spec.metrics.0.type is {kind!r}: CPU is a metric of type Resource")
    resource = mapping(autoscaler, f"spec.metrics.0.{source}")
    expect(resource.get("name"), "cpu", f"spec.metrics.0.{source}.name")
    if source == "containerResource":
        expect(resource.get("container"), CONTAINER, f"spec.metrics.0.{source}.container")
    _check_level(mapping(resource, "target"))


def _check_level(level: Mapping[str, Any]) -> None:
    """Check that the target is half of a pod's request, in per cent or in cores; there is no third type."""
    if level["type"] == "Utilization":
        expect(level["averageUtilization"], PERCENT, "averageUtilization (per cent of the request)")
    elif abs(parse_quantity(level["averageValue"]) - PERCENT / 100 * REQUEST) > 1e-6:
        value = describe(level["averageValue"])
        raise NotYet(f"averageValue is {value}: half of the {REQUEST * 1000:g}m that a pod requests")


@EXERCISE.check("it may add and remove pods")
def behaviour(autoscaler: Object, cluster: Cluster) -> None:
    rules = mapping(autoscaler, "spec").get("behavior") or {}
    for direction in ("scaleUp", "scaleDown"):
        if (rules.get(direction) or {}).get("selectPolicy") == "Disabled":
            raise NotYet(f"behavior.{direction}.selectPolicy is 'Disabled': remove it")


@EXERCISE.check("the notebook's clean-up cell finds it")
def cleanup_label(autoscaler: Object, cluster: Cluster) -> None:
    field(autoscaler, "metadata.labels")
    check_label(autoscaler, "19")
