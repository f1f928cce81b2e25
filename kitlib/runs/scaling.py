"""Bringing a run to another number of workers: by its operator, or, where they are plain pods, by the kit."""

from collections.abc import Callable, Collection
from itertools import count, islice

from kitlib.k8s import job_kinds, names, plain_pods, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.runs.log_cache import LogCache

MOST_WORKERS = 1000
LEAVE_SECONDS = 60  # more than a worker's grace period


def scale(
    kube: Kube,
    main: Object,
    wanted: int,
    seen: Collection[Object],
    *,
    log_cache: LogCache,
    report: Callable[[str], None],
) -> str:
    """Have so many workers, keep the logs of those that leave, and return in words who came and went.

    Args:
        main: The run's main object.
        wanted: How many pods it is to have.
        seen: Its pods.
    """
    if job_kinds.has_master(main):  # it looks at its Job, and does the rest
        notes = {"metadata": {"annotations": {plain_pods.REPLICAS: str(wanted)}}}
        kube.patch(main["kind"], main["metadata"]["name"], notes)
        return "the master makes and ends them"
    if main["kind"] == plain_pods.KIND:
        leaving, new = _change(main, wanted, seen)

        def act() -> None:
            notes = {"metadata": {"annotations": {plain_pods.REPLICAS: str(wanted)}}}
            kube.patch(main["kind"], main["metadata"]["name"], notes)
            for each in new:
                kube.create(each)
            for each in leaving:
                kube.delete("Pod", each["metadata"]["name"])
    else:
        masters = main["spec"].get("pytorchReplicaSpecs", {}).get("Master", {}).get("replicas", 0)
        leaving = [each for each in seen if (pods.node_rank(each) or 0) >= wanted and not pods.finished(each)]
        new = []

        def act() -> None:
            body = {"spec": {"replicas": wanted - masters}}
            kube.patch(main["kind"], main["metadata"]["name"], body, part="scale")

    log_cache.drain(leaving, act, seconds=LEAVE_SECONDS, report=report)
    came, went = (", ".join(each["metadata"]["name"] for each in some) for some in (new, leaving))
    return "; ".join(filter(None, [came and f"new: {came}", went and f"left: {went}"]))


def _change(main: Object, wanted: int, seen: Collection[Object]) -> tuple[list[Object], list[Object]]:
    """Return which plain pods leave, and which are to be made.

    A worker whose node does not answer is replaced, and ends when the node is back. A pod that has ended
    keeps its name, so that its log can be read.
    """
    live = sorted(filter(plain_pods.active, seen), key=pods.node_rank)
    lost = [
        each for each in seen if pods.node_unreachable(each) and not each["metadata"].get("deletionTimestamp")
    ]
    taken = {each["metadata"]["labels"][names.WORKER] for each in seen}
    free = (number for number in count() if str(number) not in taken)
    new = [plain_pods.worker(main, number) for number in islice(free, max(0, wanted - len(live)))]
    return [*live[wanted:], *lost], new


def workers_of_a_master(main: Object) -> tuple[int, int, int]:
    """Return how many workers a master of parameter servers wants, and the fewest and most it may."""
    return plain_pods.limits(main)[0], 1, MOST_WORKERS
