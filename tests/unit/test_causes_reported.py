"""What kubelets, containerd, CRI-O, schedulers and webhooks of other clusters say is understood as well."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from kitlib.causes import Facts, causes
from kitlib.causes.free_resources import ALL_PODS
from kitlib.causes.rules import reported, scheduling

from . import objects  # messages are as long as the programs write them

LABELS = {"batch.kubernetes.io/job-completion-index": "0"}
MAIN = {
    "kind": "Job",
    "metadata": {
        "name": "digits",
        "namespace": "ada",
        "uid": "main",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {"completions": 1},
}


def waiting(reason, message):
    """A pod that waits: a container's state."""
    state = {"waiting": {"reason": reason, "message": message}}
    return objects.pod("digits-0-abcde", phase="Pending", state=state, labels=LABELS)


def event(reason, message, kind="Pod", name="digits-0-abcde", **more):
    about = {"kind": kind, "name": name}
    meta = {"name": "x", "creationTimestamp": "2026-01-01T00:00:09Z"}
    return {
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "type": "Warning",
        "metadata": meta,
    } | more


def first(*events, pods=(), phase="Pending", **objects_of_kinds):
    facts = Facts(run="digits", main=MAIN, pods=pods, events=events, phase=phase, objects=objects_of_kinds)
    return next(iter(causes(facts, [reported.reported, scheduling.unschedulable])), None)


TABLE = yaml.safe_load(Path(__file__).with_name("causes_reported.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("kind", "message"), TABLE["pulls_that_fail_are_told_apart"])
def test_pulls_that_fail_are_told_apart(kind, message):
    for reason in ("ErrImagePull", "ImagePullBackOff"):
        assert first(pods=[waiting(reason, message)]).kind == kind
    pod = waiting("ContainerCreating", "")
    assert (
        first(
            event("Failed", message if message.startswith("Failed") else f"Failed to pull image: {message}"),
            pods=[pod],
        ).kind
        == kind
    )


@pytest.mark.parametrize(("kind", "reason", "message"), TABLE["events_of_other_kubelets_are_understood"])
def test_events_of_other_kubelets_are_understood(kind, reason, message):
    assert first(event(reason, message), pods=[waiting("ContainerCreating", "")]).kind == kind


@pytest.mark.parametrize(("kind", "reason", "message"), TABLE["starts_that_fail_are_told_apart"])
def test_starts_that_fail_are_told_apart(kind, reason, message):
    assert first(pods=[waiting(reason, message)]).kind == kind


@pytest.mark.parametrize(("kind", "message"), TABLE["pods_that_may_not_be_created_have_their_reason"])
def test_pods_that_may_not_be_created_have_their_reason(kind, message):
    for reason, prefix in (("FailedCreate", "Error creating: "), ("FailedCreatePod", "Error creating: ")):
        assert first(event(reason, prefix + message, kind="Job", name="digits")).kind == kind


def unscheduled(message, **spec):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod = objects.pod("digits-0-abcde", phase="Pending", conditions=[condition], labels=LABELS)
    pod["spec"] = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "4"}}}]} | spec
    return pod


@pytest.mark.parametrize(("kind", "message", "words"), TABLE["the_scheduler_s_message_is_taken_apart"])
def test_the_scheduler_s_message_is_taken_apart(kind, message, words):
    cause = first(pods=[unscheduled(message)])
    assert (cause.kind, words in cause.what) == (kind, True)


def of_another(reason, message):
    return event(reason, message, name="other", lastTimestamp=datetime.now(UTC).isoformat())


LOW = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 0."


@pytest.mark.parametrize(
    ("message", "events", "words"),
    [
        ("untolerated taint(s)", [], "kept for others"),
        ("untolerated taint(s)", [of_another("Evicted", LOW)], "low on resource: ephemeral-storage"),
        ("untolerated taint(s)", [of_another("NodeNotReady", "Node is not ready")], "not ready"),
        ("untolerated taint(s)", [event("Evicted", LOW, name="other")], "kept for others"),  # long ago
        ("untolerated taint {gpu: true}", [of_another("Evicted", LOW)], "{gpu: true}"),
    ],
)
def test_for_who_may_not_see_nodes_a_taint_is_what_the_namespace_shows_of_it(message, events, words):
    pending = unscheduled(f"0/1 nodes are available: 1 node(s) had {message}.")
    cause = first(*events, pods=[pending])
    assert cause.what.endswith(words), cause.what
    assert ("may not see which" in cause.what) == ("administrator" in cause.fix) == ("(s)" in message)


@pytest.mark.parametrize(
    ("holders", "cpu", "words"),
    [
        ("3", "4", ": most is free on n: 1; pod digits-1 holds 3"),
        ("0", "2", ": the largest, n, has 2 in all"),
    ],
)
def test_a_shortage_says_how_much_is_free_and_who_holds_the_rest(holders, cpu, words):
    waiting = unscheduled("0/1 nodes are available: 1 Insufficient cpu.")
    containers = [{"name": "main", "resources": {"requests": {"cpu": holders}}}]
    running = objects.pod("digits-1", node="n", labels=LABELS, containers=containers)
    known = {"Node": [objects.node(cpu)], ALL_PODS: [waiting, running]}
    facts = Facts(run="digits", main=MAIN, pods=[waiting], objects=known, phase="Pending")
    assert causes(facts)[0].what.endswith(f"(it requests 4){words}")


def test_ranks_that_wait_for_the_same_are_one_cause():
    message = "0/1 nodes are available: 1 Insufficient cpu."
    second_pod = unscheduled(message)
    second_pod["metadata"] = second_pod["metadata"] | {"name": "digits-1-fghij"}
    assert first(pods=[unscheduled(message), second_pod]).who == "rank 0 (pod digits-0-abcde), and 1 more,"
    assert first(pods=[second_pod], phase="Succeeded") is None  # the others have done its work


def test_an_event_about_what_has_passed_is_no_cause():
    running = objects.pod("digits-0-abcde", state={"running": {}}, labels=LABELS)
    late = event("FailedMount", 'MountVolume.SetUp failed for volume "v" : secret "token" not found')
    assert first(late, pods=[running], phase="Running") is None
    assert (
        first(event("FailedCreate", "Error creating: no", kind="Job", name="digits"), pods=[running]) is None
    )


def test_the_last_attempt_to_create_pods_explains_why_there_are_none():
    def refused(why, second):
        when = {"name": "x", "creationTimestamp": f"2026-01-01T00:00:{second:02}Z"}
        return event("FailedCreate", f"Error creating: pods {why}", kind="Job", name="digits", metadata=when)

    account = 'is forbidden: error looking up service account ns/default: serviceaccount "default" not found'
    quota = "is forbidden: exceeded quota: room, requested: pods=1, used: pods=0, limited: pods=0"
    facts = Facts(run="digits", main=MAIN, events=[refused(account, 1), refused(quota, 2)], phase="Pending")
    assert [cause.kind for cause in causes(facts, [reported.reported])] == ["Quota"]
    facts = replace(facts, events=facts.events[::-1])
    assert [cause.kind for cause in causes(facts, [reported.reported])] == ["ServiceAccountMissing"]


def test_a_mount_that_failed_at_first_does_not_explain_the_end_of_a_pod_that_is_gone():
    mount = event("FailedMount", 'MountVolume.SetUp failed for volume "v" : configmap "nosuch" not found')
    later = {"name": "y", "creationTimestamp": "2026-01-01T00:00:10Z"}
    failed = MAIN | {"status": {"conditions": [objects.condition("Failed", message="it failed")]}}

    def kinds(*events):
        facts = Facts(run="digits", main=failed, events=events, phase="Failed")
        return [cause.kind for cause in causes(facts, [reported.reported])]

    assert kinds(mount) == ["MissingConfigMap"]
    assert kinds(mount, event("Started", "", name="digits-1-fghij", metadata=later)) == ["MissingConfigMap"]
    assert kinds(mount, event("Started", "", type="Normal", metadata=later)) == []


def test_a_warning_that_nothing_knows_is_shown_as_it_is():
    cause = first(event("OddThing", "the moon is full"), pods=[waiting("ContainerCreating", "")])
    assert cause.line == "rank 0 (pod digits-0-abcde) reports OddThing: the moon is full"


def test_an_event_about_another_run_is_none_of_this_one():
    assert first(event("FailedCreate", "Error creating: no", kind="Job", name="digits-2x")) is None
    assert first(event("FailedMount", "no", name="letters-0-abcde"), pods=[]) is None


def test_events_of_an_earlier_run_of_the_same_name_say_nothing():
    stopped = event("Killing", "Stopping container main", type="Normal")
    early = {"name": "x", "creationTimestamp": "2025-12-31T23:59:59Z"}
    failed = {"conditions": [{"type": "Failed", "status": "True", "message": "backoff limit"}]}
    for earlier in (True, False):
        events = [stopped | {"metadata": early}] if earlier else [stopped]
        facts = Facts(run="digits", main=MAIN | {"status": failed}, events=events, phase="Failed")
        shown = causes(facts, [reported.reported])
        assert [cause.kind for cause in shown] == ([] if earlier else ["PodDeleted"])
    involved = {"kind": "Job", "name": "digits"}
    refused = event("FailedCreate", "no", involvedObject=involved | {"uid": "another"})
    assert first(refused) is None
    assert first(event("FailedCreate", "no", involvedObject=involved | {"uid": "main"}))
