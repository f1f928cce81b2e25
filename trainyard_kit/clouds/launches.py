"""Wait for training nodes, and report the cloud's reason if they do not start."""

from collections.abc import Callable, Collection, Mapping

from kitlib.errors import ProviderFailed
from trainyard_kit.clouds.steps import Phase, Steps

STEP, POLL_SECONDS, NO_PROGRESS_SECONDS = "training nodes", 15.0, 900.0
KEEP_AWAKE = "started from this machine once the control plane is ready: keep it awake, or repeat the call"


def await_nodes(
    nodes: int,
    steps: Steps,
    ready: Callable[[], int],
    failures: Callable[[], Mapping[str, str]],
    fix_for: Callable[[str], str],
    known: Collection[str],
) -> None:
    """Wait until ``nodes`` training nodes are Ready.

    Args:
        nodes: The target.
        steps: Where progress is shown.
        ready: Counts the Ready ones.
        failures: The cloud's messages about failed launches by id, newest first.
        fix_for: Returns the fix if a message means that waiting is useless, else an empty string.
        known: Ids of failures that are older than this operation.
    """
    deadline, before = steps.clock.now() + NO_PROGRESS_SECONDS, 0
    with steps.step(STEP):
        while (now := ready()) < nodes:
            message = next((message for id_, message in failures().items() if id_ not in known), "")
            fix = fix_for(message) if message else ""
            if now > before:
                before, deadline = now, steps.clock.now() + NO_PROGRESS_SECONDS
            if fix or steps.clock.now() > deadline:
                what = f"{now} of {nodes} training nodes are Ready: {message or 'the cloud gives no reason'}"
                fix = fix or f"wait, or `cluster.scale({now})`, so that no more are requested"
                raise ProviderFailed(what, about=steps.title, fix=fix)
            steps.update(STEP, Phase.RUNNING, f"{now} of {nodes} are Ready{message and f'; {message}'}")
            steps.sleep(POLL_SECONDS)
