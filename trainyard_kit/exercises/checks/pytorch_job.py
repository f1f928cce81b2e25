"""09: turn a Deployment into a PyTorchJob. The operator's CRD and webhook validate it in a dry run."""

from collections.abc import Mapping
from typing import Any

from kitlib.clusters import Cluster
from kitlib.k8s.manifests import Object
from trainyard_kit.exercises.checklist import UNTOUCHED, Exercise, NotYet, describe, field, mapping
from trainyard_kit.exercises.manifests import check_kind, dry_run, expect

REPLICAS = "spec.pytorchReplicaSpecs"
EXERCISE = Exercise("job", "deployment", "cluster")


def containers(job: Object) -> list[Mapping[str, Any]]:
    """Return the containers named ``pytorch`` of the master and the workers, or else the first ones."""
    chosen = []
    for role in ("Master", "Worker"):
        path = f"{REPLICAS}.{role}.template.spec.containers"
        first, items = mapping(job, f"{path}.0"), field(job, path)
        named = [item for item in items if item.get("name") == "pytorch"] if isinstance(items, list) else []
        chosen.append(named[0] if named else first)
    return chosen


@EXERCISE.check("it is a PyTorchJob", essential=True)
def kind(job: Object, deployment: Object, cluster: Cluster) -> None:
    check_kind(job, kind="PyTorchJob", version="kubeflow.org/v1")
    if "TODO" in ((job.get("spec") or {}).get("pytorchReplicaSpecs") or ()):
        raise NotYet(UNTOUCHED)


@EXERCISE.check("it has a Master and Workers, each with a pod template", essential=True)
def replicas(job: Object, deployment: Object, cluster: Cluster) -> None:
    specs = field(job, REPLICAS)
    if not isinstance(specs, dict) or set(specs) != {"Master", "Worker"}:
        message = ", ".join(specs) if isinstance(specs, dict) else describe(specs)
        raise NotYet(f"{REPLICAS} has {message or 'nothing'}, and should have Master and Worker")
    containers(job)


@EXERCISE.check("the operator's container is called pytorch")
def container_name(job: Object, deployment: Object, cluster: Cluster) -> None:
    container_names = [container.get("name") for container in containers(job)]
    if wrong := [name for name in container_names if name != "pytorch"]:
        raise NotYet(
            f"a container is called {wrong[0]!r}: the operator sets variables only in one called 'pytorch'"
        )


@EXERCISE.check("the API server and the operator accept it (a dry run)")
def accepted(job: Object, deployment: Object, cluster: Cluster) -> None:
    dry_run(cluster, job)


@EXERCISE.check("it has as many pods as the Deployment")
def pod_count(job: Object, deployment: Object, cluster: Cluster) -> None:
    if (job["spec"].get("runPolicy") or {}).get("suspend"):
        raise NotYet("runPolicy.suspend keeps pods from being created: leave it out")
    counts = [mapping(job, f"{REPLICAS}.{role}").get("replicas", 1) for role in ("Master", "Worker")]
    expect(sum(counts), deployment["spec"]["replicas"], f"the number of pods, {counts[0]} + {counts[1]},")


@EXERCISE.check("all of them have the Deployment's image and command")
def same_image_and_command(job: Object, deployment: Object, cluster: Cluster) -> None:
    expected = mapping(deployment, "spec.template.spec.containers.0")
    for container in containers(job):
        expect(container.get("image"), expected.get("image"), "a container's image")
        if not container.get("command"):
            raise NotYet("a container has no command, so that of its image would run: keep the Deployment's")
        words = [*container["command"], *(container.get("args") or ())]
        expect(words, expected.get("command"), "a container's command")


@EXERCISE.check("a failed rank is not restarted on its own")
def restart_policy(job: Object, deployment: Object, cluster: Cluster) -> None:
    for role in ("Master", "Worker"):
        policy = mapping(job, f"{REPLICAS}.{role}").get("restartPolicy")
        expect(policy, "Never", f"{role}.restartPolicy")
