"""Restart policies and crash back-off.

Pure. Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy
"""

from dataclasses import replace

from localkube.api_path import Object
from localkube.kubelet.status.container_state import ContainerRecord, containers

RESTART, RESTART_ALL = "Restart", "RestartAllContainers"
FIRST_DELAY, LONGEST_DELAY, FORGIVEN_AFTER = 10.0, 300.0, 600.0
FIRST_RETRY, LONGEST_RETRY = 2.0, 10.0


def should_restart(policy: str, exit_code: int | None) -> bool:
    """Apply ``Always``, ``OnFailure`` or ``Never``.

    Example:
        >>> should_restart("OnFailure", 0), should_restart("OnFailure", 1)
        (False, True)
    """
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def container_should_restart(pod: Object, container: Object, exit_code: int | None) -> bool:
    """Apply a container's own rules and policy, then its pod's.

    An init container under ``Always`` runs again only when it failed; a sidecar always.
    """
    if action := restart_action(container, exit_code):
        return action in (RESTART, RESTART_ALL)
    policy = container.get("restartPolicy") or pod["spec"].get("restartPolicy", "Always")
    is_init = any(
        container["name"] == init_container["name"]
        for init_container in pod["spec"].get("initContainers") or []
    )
    if is_init and not is_sidecar(container) and policy == "Always":
        policy = "OnFailure"
    return should_restart(policy, exit_code)


def restart_action(container: Object, exit_code: int | None) -> str | None:
    """Find the action of the first of a container's ``restartPolicyRules`` that matches its exit code."""
    rules = container.get("restartPolicyRules") or []
    return next((rule["action"] for rule in rules if _matches(rule, exit_code)), None)


def may_restart_all(pod: Object) -> bool:
    """Check whether the exit of one of a pod's containers may restart all of them."""
    rules = [rule for _, container in containers(pod) for rule in container.get("restartPolicyRules") or []]
    return any(rule["action"] == RESTART_ALL for rule in rules)


def restarts_after_probe(pod: Object, container: Object) -> bool:
    """Check whether a container that a liveness or startup probe has terminated is restarted.

    Its exit code does not matter: 0 after SIGTERM is not a success, and no rule applies.
    """
    return (container.get("restartPolicy") or pod["spec"].get("restartPolicy", "Always")) != "Never"


def is_sidecar(container: Object) -> bool:
    return container.get("restartPolicy") == "Always"


def crashes(before: int, *, ran_for: float) -> int:
    """Count consecutive crashes, now that the container has ended again; running ten minutes resets them."""
    return 1 if ran_for >= FORGIVEN_AFTER else before + 1


def backoff(count: int) -> float:
    """Compute the delay in seconds from the ``count``-th consecutive end to the next start.

    The first restart is immediate; then 10, 20, 40, … 300 seconds.

    Example:
        >>> [backoff(count) for count in range(1, 8)]
        [0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0]
    """
    if count < 2:
        return 0.0
    return min(FIRST_DELAY * 2 ** min(count - 2, 10), LONGEST_DELAY)


def config_backoff(count: int, *, permanent: bool = False) -> float:
    """Compute the delay in seconds after the ``count``-th start that failed because of the configuration.

    Missing objects are looked up at least as often as by the kubelet; a ``permanent`` error is a crash.

    Example:
        >>> [config_backoff(count) for count in range(1, 5)], config_backoff(9, permanent=True)
        ([2.0, 4.0, 8.0, 10.0], 300.0)
    """
    if permanent:
        return backoff(count + 1)
    return min(FIRST_RETRY * 2 ** min(max(0, count - 1), 10), LONGEST_RETRY)


def waiting_to_restart(pod: Object, record: ContainerRecord, delay: float) -> ContainerRecord:
    """Create the record of a container in CrashLoopBackOff for ``delay`` seconds.

    The ended run becomes ``last``; the restart count is unchanged until the next start.
    """
    metadata = pod["metadata"]
    where = f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"
    message = f"back-off {duration(delay)} restarting failed container={record.name} pod={where}"
    return _waiting(record, "CrashLoopBackOff", message, last=replace(record, last=None))


def removed_to_restart(record: ContainerRecord) -> ContainerRecord:
    """Create the record of a container that waits until all containers of its pod start again."""
    text = "The container is removed because RestartAllContainers in place"
    last = record.last if record.state == "waiting" else replace(record, last=None)
    return _waiting(record, "RestartingAllContainers", text, last=last)


def _waiting(
    record: ContainerRecord, reason: str, message: str, *, last: ContainerRecord | None
) -> ContainerRecord:
    return replace(
        record,
        state="waiting",
        reason=reason,
        message=message,
        started_at=None,
        finished_at=None,
        exit_code=None,
        signal=None,
        ready=False,
        started=False,
        last=last,
    )


def duration(seconds: float) -> str:
    """Format a duration as Kubernetes does.

    Example:
        >>> duration(10), duration(80), duration(300)
        ('10s', '1m20s', '5m0s')
    """
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{remainder}s"
    return f"{minutes}m{remainder}s" if minutes else f"{remainder}s"


def _matches(rule: Object, exit_code: int | None) -> bool:
    codes = rule.get("exitCodes") or {}
    listed = exit_code in (codes.get("values") or [])
    return listed if codes.get("operator") == "In" else not listed
