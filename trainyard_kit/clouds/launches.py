"""Waiting for training nodes, with the cloud's reason where it does not give them."""

from collections.abc import Callable, Collection, Mapping

from kitlib.errors import ProviderFailed
from trainyard_kit.clouds.steps import Phase, Steps

STEP, POLL, STANDSTILL = "training nodes", 15.0, 900.0
AWAKE = "this machine starts it when the control plane is ready: keep it awake, or repeat the call"


def await_nodes(
    nodes: int,
    steps: Steps,
    ready: Callable[[], int],
    failures: Callable[[], Mapping[str, str]],
    fix_for: Callable[[str], str],
    known: Collection[str],
) -> None:
    """Wait until so many training nodes are Ready.

    Args:
        nodes: How many.
        ready: Counts those that are.
        failures: The cloud's words for launches that failed, by an id, the newest first.
        fix_for: What to do about such words if no waiting helps; empty if it may.
        known: Ids of failures from before, which have been dealt with.
    """
    end, before = steps.clock.now() + STANDSTILL, 0
    with steps.step(STEP):
        while (now := ready()) < nodes:
            words = next((words for launch, words in failures().items() if launch not in known), "")
            fix = fix_for(words) if words else ""
            if now > before:
                before, end = now, steps.clock.now() + STANDSTILL
            if fix or steps.clock.now() > end:
                what = f"{now} of {nodes} training nodes are Ready: {words or 'the cloud gives no reason'}"
                fix = fix or f"wait, or `cluster.scale({now})`, so that no more are requested"
                raise ProviderFailed(what, about=steps.title, fix=fix)
            steps.update(STEP, Phase.RUNS, f"{now} of {nodes} are Ready{words and f'; {words}'}")
            steps.sleep(POLL)
