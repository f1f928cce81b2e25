"""What kubelets, containerd, CRI-O, schedulers and webhooks of other clusters say is understood as well."""

from datetime import UTC, datetime

import pytest

from kitlib.causes import Facts, causes
from kitlib.causes.room import ALL_PODS
from kitlib.causes.rules import reported, scheduling

from . import objects  # messages are as long as the programs write them

# ruff: noqa: E501

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


PULL = 'Failed to pull image "r.io/x:1": rpc error: code = {} desc = failed to pull and unpack image "r.io/x:1": {}'


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "ImageNotFound",
            PULL.format("NotFound", 'failed to resolve reference "r.io/x:1": r.io/x:1: not found'),
        ),
        (
            "ImageNotFound",
            "initializing source docker://r.io/x:1: reading manifest 1 in r.io/x: manifest unknown",
        ),
        (
            "ImageForbidden",
            PULL.format("Unknown", "failed to authorize: failed to fetch oauth token: 401 Unauthorized"),
        ),
        (
            "ImageForbidden",
            PULL.format(
                "Unknown",
                "pull access denied, repository does not exist or may require authorization: server message: "
                "insufficient_scope: authorization failed",
            ),
        ),
        ("ImageForbidden", PULL.format("Unknown", "unexpected status from HEAD request: 403 Forbidden")),
        ("ImageArchitecture", PULL.format("NotFound", "no match for platform in manifest: not found")),
        (
            "ImageArchitecture",
            "choosing image: no image found in manifest list for architecture arm64, OS linux",
        ),
        ("RegistryUnreachable", PULL.format("Unknown", "dial tcp: lookup r.io on 10.0.0.2:53: no such host")),
        ("RegistryUnreachable", PULL.format("Unknown", "dial tcp 10.1.1.1:443: i/o timeout")),
        (
            "RegistryUnreachable",
            PULL.format("Unknown", "tls: failed to verify certificate: x509: signed by unknown"),
        ),
        ("RegistryUnreachable", PULL.format("Unknown", "429 Too Many Requests: toomanyrequests")),
    ],
)
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


@pytest.mark.parametrize(
    ("kind", "reason", "message"),
    [
        (
            "MissingSecret",
            "FailedMount",
            'MountVolume.SetUp failed for volume "v" : secret "token" not found',
        ),
        (
            "MissingConfigMap",
            "FailedMount",
            'MountVolume.SetUp failed for volume "v" : configmap "x" not found',
        ),
        (
            "MissingSecret",
            "FailedMount",
            'MountVolume.SetUp failed for volume "v" : references non-existent secret key: t',
        ),
        (
            "DriverMissing",
            "FailedMount",
            'MountVolume.MountDevice failed for volume "pvc-1" : kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name efs.csi.aws.com not found in the list of registered CSI drivers',
        ),
        (
            "DeviceClaim",
            "FailedPrepareDynamicResources",
            "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources: no",
        ),
        (
            "VolumeInUse",
            "FailedAttachVolume",
            'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) x-0',
        ),
        (
            "VolumeNotMounted",
            "FailedMount",
            'MountVolume.SetUp failed for volume "nfs" : mount failed: exit status 32',
        ),
        (
            "RuntimeMissing",
            "FailedCreatePodSandBox",
            'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "kata" is configured',
        ),
        (
            "SandboxFailed",
            "FailedCreatePodSandBox",
            'Failed to create pod sandbox: plugin type="aws-cni" failed (add): no IP addresses available',
        ),
        (
            "SandboxFailed",
            "NetworkNotReady",
            "network is not ready: container runtime network not ready: cni plugin not initialized",
        ),
    ],
)
def test_events_of_other_kubelets_are_understood(kind, reason, message):
    assert first(event(reason, message), pods=[waiting("ContainerCreating", "")]).kind == kind


@pytest.mark.parametrize(
    ("kind", "reason", "message"),
    [
        (
            "EntryPointMissing",
            "StartError",
            'failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: "nope": executable file not found in $PATH',
        ),
        (
            "EntryPointMissing",
            "RunContainerError",
            'runc create failed: unable to start container process: error during container init: exec: "/x": stat /x: no such file or directory',
        ),
        (
            "NotExecutable",
            "StartError",
            'unable to start container process: exec: "/etc/passwd": permission denied',
        ),
        ("ImageArchitecture", "StartError", "exec /usr/bin/python: exec format error"),
        (
            "RunAsNonRoot",
            "CreateContainerConfigError",
            "container has runAsNonRoot and image will run as root",
        ),
        (
            "RunAsNonRoot",
            "CreateContainerConfigError",
            "container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root",
        ),
        ("NoCommand", "CreateContainerError", 'failed to generate container "x" spec: no command specified'),
        (
            "ImageName",
            "InvalidImageName",
            'Failed to apply default image tag "A/B:1": couldn\'t parse image name: repository name must be lowercase',
        ),
    ],
)
def test_starts_that_fail_are_told_apart(kind, reason, message):
    assert first(pods=[waiting(reason, message)]).kind == kind


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "WebhookDown",
            'Internal error occurred: failed calling webhook "v.io": failed to call webhook: Post "https://v.ns.svc:443/?timeout=10s": context deadline exceeded',
        ),
        (
            "WebhookDown",
            'Internal error occurred: failed calling webhook "v.io": failed to call webhook: Post "https://v.ns.svc:443/": no endpoints available for service "v"',
        ),
        (
            "WebhookDenied",
            'admission webhook "validate.kyverno.svc-fail" denied the request: policy require-labels: team is missing',
        ),
        (
            "QuotaLimits",
            'pods "digits-0-x" is forbidden: failed quota: compute: must specify limits.cpu for: main',
        ),
        (
            "LimitRange",
            'pods "x" is forbidden: [maximum cpu usage per Pod is 2, but limit is 4, maximum memory usage per Pod is 1Gi, but limit is 2Gi]',
        ),
        (
            "NamespaceTerminating",
            'pods "x" is forbidden: unable to create new content in namespace ada because it is being terminated',
        ),
        (
            "PermissionDenied",
            'pods is forbidden: User "system:serviceaccount:kubeflow:op" cannot create resource "pods" in API group "" in the namespace "ada"',
        ),
    ],
)
def test_pods_that_may_not_be_created_have_their_reason(kind, message):
    for reason, prefix in (("FailedCreate", "Error creating: "), ("FailedCreatePod", "Error creating: ")):
        assert first(event(reason, prefix + message, kind="Job", name="digits")).kind == kind


def unscheduled(message, **spec):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod = objects.pod("digits-0-abcde", phase="Pending", conditions=[condition], labels=LABELS)
    pod["spec"] = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "4"}}}]} | spec
    return pod


@pytest.mark.parametrize(
    ("kind", "message", "words"),
    [
        (
            "NoRoom",
            "0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient memory. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.",
            "1 have not enough cpu free (it requests 4); 1 have not enough memory",
        ),
        (
            "Tainted",
            "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: true}. preemption: not helpful",
            "a taint that it does not tolerate: {gpu: true}",
        ),
        (
            "OneNodeVolume",
            "0/2 nodes are available: 2 node(s) had volume node affinity conflict.",
            "is on one node or in one zone",
        ),
        ("TooManyPods", "0/1 nodes are available: 1 Too many pods.", "all the pods that they may have"),
        (
            "NoVolume",
            "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.",
            "no volume for its claim",
        ),
        ("Unschedulable", "no nodes available to schedule pods", "no nodes available to schedule pods"),
        ("Unschedulable", "0/1 nodes are available: 1 node(s) were made of cheese.", "made of cheese"),
    ],
)
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
        (
            "untolerated taint(s)",
            [of_another("Evicted", LOW)],
            "low on resource: ephemeral-storage",
        ),
        (
            "untolerated taint(s)",
            [of_another("NodeNotReady", "Node is not ready")],
            "not ready",
        ),
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


def test_an_event_about_what_has_passed_is_no_cause():
    running = objects.pod("digits-0-abcde", state={"running": {}}, labels=LABELS)
    late = event("FailedMount", 'MountVolume.SetUp failed for volume "v" : secret "token" not found')
    assert first(late, pods=[running], phase="Running") is None
    assert (
        first(event("FailedCreate", "Error creating: no", kind="Job", name="digits"), pods=[running]) is None
    )


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
