"""How long pods of high priority wait while elastic training has all the room: from creation to start.

Four workers of low priority train, one on each node; a Deployment grows to seven pods, two of which fill a
node, so three workers are preempted. They are told to leave, do so at the end of their step, and the pods
take their place. The longest wait of a round counts: that is what the last user of the service sees.
"""

import time

import kitlib as kit
from bench.lab import Lab
from bench.results import Limit, Result
from bench.watching import Watch, has_started, wait_gone
from kitlib.clusters import Cluster
from kitlib.k8s.manifests import Object
from kitlib.k8s.priority import ensure_priority_class
from kitlib.k8s.quantities import parse_quantity

SECONDS, PATIENCE_SECONDS = 2, 180
WORKERS, SERVED = 4, 7
SERVICE, LABEL = "test-nginx", "nginx"
MANIFEST = "manifests/elastic-scheduling/nginx.yaml"
ENDLESS = {"epochs": 100_000, "step_seconds": 0.05}


def measure(lab: Lab) -> list[Result]:
    """Preempt workers that train, once a round."""
    cluster = lab.ours
    kit.install("elastic-job", cluster=cluster)
    ensure_priority_class(cluster.kube, "high")
    half = min(parse_quantity(node["cpu"]) for node in cluster.nodes()) / 2
    waits = []
    try:
        cluster.apply(MANIFEST)
        asked = f"cpu={0.9 * half:.3f}"
        cluster.kubectl(f"set resources deployment {SERVICE} --requests={asked} --limits={asked}")
        run = kit.launch(
            kit.ElasticJob(
                "trainers/digits_elastic.py",
                nodes=WORKERS,
                min_nodes=1,
                max_nodes=WORKERS,
                priority="low",
                cpu=f"{half:.3f}",
                args=ENDLESS,
            ),
            cluster=cluster,
        )
        for done in range(lab.rounds):
            lab.report(f"preempting workers, {done + 1} of {lab.rounds}")
            waits.append(_round(cluster, run))
        run.delete()
    finally:
        cluster.kubectl(f"delete deployment {SERVICE} --ignore-not-found")
        kit.uninstall("elastic-job", cluster=cluster)
    wait_gone(cluster.kube)
    return [
        Result(
            what=f"3 of {WORKERS} elastic workers preempted: pod of the service created → started, the last",
            unit="s",
            ours=tuple(max(wait) for wait in waits),
            limit=Limit(SECONDS, of="value", unit="s"),
            details={"each": waits},
        )
    ]


def _round(cluster: Cluster, run: kit.Run) -> list[float]:
    """Return how many seconds each pod of the service waited."""
    _scale(cluster, 0)
    wait_gone(cluster.kube, labels=f"app={LABEL}")
    run.wait(until=lambda now: now.world_size == WORKERS and now.training, timeout=PATIENCE_SECONDS)
    with Watch(cluster.kube, "Pod") as watch:
        created: dict[str, float] = {}
        started: dict[str, float] = {}

        def all_started(kind: str, pod: Object) -> bool:
            now, uid = time.monotonic(), pod["metadata"]["uid"]
            if (pod["metadata"].get("labels") or {}).get("app") == LABEL and kind != "DELETED":
                created.setdefault(uid, now)
                if has_started(pod):
                    started.setdefault(uid, now)
            return len(started) == SERVED

        _scale(cluster, SERVED)
        watch.until(all_started, what=f"{SERVED} pods of the service")
    return [started[uid] - created[uid] for uid in started]


def _scale(cluster: Cluster, replicas: int) -> None:
    cluster.kubectl(f"scale deployment {SERVICE} --replicas={replicas}")
