"""Waits of which nobody reports anything: policies, nodes, gates, time that passes. On objects alone."""

from datetime import UTC, datetime, timedelta

import pytest

from kitlib.causes import Facts, causes, known_errors
from kitlib.causes.rules import containers, network, nodes, reported, waiting
from kitlib.display.tracebacks import Line

from . import objects

NOW = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
LABELS = {"trainyard/run": "digits", "batch.kubernetes.io/job-completion-index": "0"}


def main(kind="Job", *, age=300, **more):
    since = (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    meta = {"name": "digits", "namespace": "ada", "uid": "main", "creationTimestamp": since}
    return {"kind": kind, "metadata": meta, "spec": {"completions": 2}} | more


def pod(phase="Running", **more):
    since = {"startTime": objects.SINCE}
    return objects.pod(
        "digits-0", phase=phase, node="n", labels=LABELS, status=since, namespace="ada", **more
    )


def policy(name="deny", selector=None, types=("Ingress", "Egress"), **rules):
    spec = {"podSelector": selector or {}, "policyTypes": list(types)} | rules
    return {"metadata": {"name": name}, "spec": spec}


def causes_of(rules, *policies, pods=(), phase="Running", logs=None, events=(), item=None, **kinds):
    known = {"NetworkPolicy": policies} | kinds
    facts = Facts(
        run="digits",
        main=item or main(),
        pods=pods,
        objects=known,
        events=events,
        logs=logs or {},
        now=NOW,
        phase=phase,
    )
    return causes(facts, rules)


SAME = {"podSelector": {"matchExpressions": [{"key": "trainyard/run", "operator": "Exists"}]}}
OTHER = {"podSelector": {"matchLabels": {"app": "web"}}}
DNS = {"ports": [{"port": 53, "protocol": "UDP"}]}


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ([policy()], ["reached by each other", "reaching each other", "DNS"]),
        ([policy(types=["Ingress"])], ["reached by each other"]),
        ([policy(types=["Ingress"], ingress=[{"from": [OTHER]}])], ["reached by each other"]),
        ([policy(types=["Egress"], egress=[{"to": [SAME]}])], ["DNS"]),
        ([policy(types=["Egress"], egress=[DNS])], ["reaching each other"]),
        ([policy(), policy("allow", ingress=[{"from": [SAME]}], egress=[{"to": [SAME]}, DNS])], []),
        ([policy(types=["Ingress"], ingress=[{}])], []),
        ([policy(types=["Egress"], egress=[{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}])], []),
        ([policy(selector={"matchLabels": {"app": "web"}})], []),
        ([policy(selector={"matchExpressions": [{"key": "app", "operator": "In", "values": ["x"]}]})], []),
    ],
)
def test_policies_are_evaluated_as_the_network_does(policies, words):
    shown = causes_of(network.RULES, *policies, pods=[pod()])
    assert len(shown) == bool(words)
    for word in words:
        assert word in shown[0].what
    assert not shown or shown[0].what.count(" and ") == len(words) - 1


def test_a_run_that_has_done_a_step_is_not_kept_apart():
    logs = {0: [Line("", '{"event": "step", "loss": 1}')]}
    assert causes_of(network.RULES, policy(), pods=[pod()], logs=logs) == []


def test_an_unhealthy_node_is_named_with_its_ranks():
    conditions = [
        objects.condition("Ready", "Unknown", message="Kubelet stopped posting node status."),
        objects.condition("DiskPressure", reason="KubeletHasDiskPressure"),
        objects.condition("KubeletStalled", message="for 12 s"),
        objects.condition("MemoryPressure", "False"),
    ]
    node = {"metadata": {"name": "n"}, "spec": {}, "status": {"conditions": conditions}}
    shown = causes_of(nodes.RULES, pods=[pod()], Node=[node])
    assert [cause.kind for cause in shown] == ["NodeNotReady", "DiskPressure", "KubeletStalled"]
    assert {cause.who for cause in shown} == {"node n (rank 0)"}
    assert "is short of disk" in shown[1].what


def test_a_user_who_may_not_read_nodes_learns_of_a_lost_one_from_the_pod():
    ready = [objects.condition("Ready", "False"), objects.condition("ContainersReady")]
    (cause,) = causes_of(nodes.RULES, pods=[pod(conditions=ready)])
    assert (cause.kind, cause.who) == ("NodeNotReady", "node n (rank 0)")


@pytest.mark.parametrize("kind", ["PyTorchJob", "TrainJob", "ElasticJob"])
def test_an_object_on_which_nobody_acts_names_its_operator(kind):
    (cause,) = causes_of(waiting.RULES, item=main(kind), phase="Pending")
    assert (cause.kind, "kit.install" in cause.fix) == ("NoOperator", True)
    assert causes_of(waiting.RULES, item=main(kind, age=3), phase="Pending") == []


def workload(owner="main", **statuses):
    """Kueue's Workload of an object, with conditions and their messages as Kueue v0.19.2 writes them."""
    conditions = [objects.condition(kind, status, message=text) for kind, (status, text) in statuses.items()]
    owners = [{"kind": "Job", "name": "digits", "uid": owner}]
    return {
        "metadata": {"name": "job-digits", "ownerReferences": owners},
        "status": {"conditions": conditions},
    }


QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor nodes"
NO_QUOTA = {"QuotaReserved": ("False", QUOTA)}
EVICTED = {
    "Evicted": ("True", "Preempted"),
    "QuotaReserved": ("False", QUOTA),
    "Admitted": ("False", "no reservation"),
}


@pytest.mark.parametrize(
    ("workloads", "words"),
    [
        ([workload("other"), workload(**NO_QUOTA)], QUOTA),
        ([workload(**EVICTED)], QUOTA),
        (
            [workload(QuotaReserved=("True", "reserved"), Admitted=("False", "check pending"))],
            "check pending",
        ),
        (
            [workload(QuotaReserved=("True", "reserved"), Admitted=("True", "admitted"))],
            "no quota, or no Kueue",
        ),
        ([workload("other", **NO_QUOTA)], "no quota, or no Kueue"),
        ([], "no quota, or no Kueue"),
    ],
)
def test_a_job_that_waits_in_a_queue_quotes_the_condition_of_its_workload(workloads, words):
    item = main(spec={"completions": 2, "suspend": True})
    item["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-a"}
    (cause,) = causes_of([waiting.suspended], item=item, phase="Pending", Workload=workloads)
    assert cause.what == f"is suspended until Kueue admits it from the queue team-a: {words}"


def test_a_pod_behind_kueues_gate_quotes_the_condition_of_its_own_workload():
    gated = objects.pod("digits-0", phase="Pending", labels=LABELS, uid="pod")
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    (cause,) = causes_of([waiting.not_scheduled], pods=[gated], Workload=[workload("pod", **NO_QUOTA)])
    assert cause.what == f"is held back by its scheduling gate kueue.x-k8s.io/admission: {QUOTA}"


def test_a_job_past_its_deadline_that_its_operator_forgot_is_named():
    spec = {"runPolicy": {"activeDeadlineSeconds": 60}}
    item = main("PyTorchJob", spec=spec, status={"startTime": objects.SINCE})
    (cause,) = causes_of(waiting.RULES, item=item, pods=[pod()])
    assert "past its activeDeadlineSeconds of 60" in cause.what


def test_a_job_given_up_by_its_operator_names_the_limit():
    limit = "it has reached the specified backoff limit"
    failed = objects.condition("Failed", message=limit, lastTransitionTime=objects.SINCE)
    item = main("PyTorchJob", status={"conditions": [failed]})
    item["spec"] = {"runPolicy": {"backoffLimit": 2}, "pytorchReplicaSpecs": {"Master": {}}}
    killing = {"reason": "Killing", "message": "Stopping container x", "type": "Normal", "metadata": {}}
    killing |= {"involvedObject": {"kind": "Pod", "name": "digits-worker-0"}, "lastTimestamp": objects.SINCE}
    (cause,) = causes_of([waiting.gave_up, reported.reported], item=item, events=[killing], phase="Failed")
    assert (cause.kind, "backoffLimit of 2" in cause.what) == ("BackoffLimit", True)
    assert "was deleted while it ran" in cause.ruled_out[0]


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_an_error_that_a_controller_retried_is_no_cause(phase):
    about = {"involvedObject": {"kind": "Endpoints", "name": "digits"}, "lastTimestamp": objects.SINCE}
    event = {"reason": "FailedToCreateEndpoint", "type": "Warning", "metadata": {}} | about
    event["message"] = 'Failed to create endpoint for service ada/digits: endpoints "digits" already exists'
    assert not causes_of([reported.reported], item=main(age=600), events=[event], phase=phase)
    refused = event | {"message": "Failed to create endpoint for service ada/digits: forbidden: no quota"}
    named = causes_of([reported.reported], item=main(age=600), events=[refused], phase=phase)
    assert [cause.kind for cause in named] == ["FailedToCreateEndpoint"] * (phase == "Running")


@pytest.mark.parametrize(
    ("lines", "program"),
    [
        (["sh: line 1: nc: command not found", "waiting"], "nc"),  # bash
        (["sh: 1: pg_isready: not found"], "pg_isready"),  # dash
        (["sh: redis-cli: not found", "waiting for redis"], "redis-cli"),  # BusyBox
        (["/wait.sh: line 12: mysqladmin: command not found"], "mysqladmin"),
        (["/wait.sh: 12: ./tool: not found"], "./tool"),
        (["waiting for db: not found yet"], ""),
        (["error: object not found", "nc: command not found", "a", "b", "c"], ""),
    ],
)
def test_a_program_that_a_shell_does_not_find_is_named_by_the_end_of_a_log(lines, program):
    assert known_errors.missing_program(lines)[0] == program


@pytest.mark.parametrize(("times", "kinds"), [(2, ["MissingProgram"]), (1, [])])
def test_a_running_container_that_calls_a_missing_program_again_and_again_is_named(times, kinds):
    lines = [Line("", "sh: 1: nc: not found"), Line("", "waiting")] * times
    facts = Facts(run="digits", main=main(), pods=[pod()], logs={0: lines}, now=NOW, phase="Running")
    assert [cause.kind for cause in causes(facts, [containers.crash_loops])] == kinds
