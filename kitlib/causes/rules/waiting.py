"""Causes of a wait that nothing reports: suspended, gated, no scheduler, an init container
that does not end, a pull, a node or an operator that does not act, a finalizer.

They are found by the time that has passed; what the API reports in messages is in ``reported``.
"""

from collections.abc import Iterator, Sequence

from kitlib.causes.cause import CERTAIN, CONSEQUENCE, LIKELY, POSSIBLE, Cause
from kitlib.causes.facts import QUEUE, WORKLOAD, Facts
from kitlib.causes.known_errors import missing_program
from kitlib.causes.signals import pod_name
from kitlib.k8s import job_kinds, pods
from kitlib.k8s.events import event_time
from kitlib.k8s.manifests import Object

PATIENCE_SECONDS = 8  # how long a step may take before it is reported
KUEUE_GATES = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
# Kubernetes has Workloads of its own.
KUEUE_FIX = "kubectl get workloads.kueue.x-k8s.io,localqueues,clusterqueues; kubectl get pods -n kueue-system"
JOB_TRACKING = "batch.kubernetes.io/job-tracking"  # of every pod of a Job, for a moment


def suspended(facts: Facts) -> Iterator[Cause]:
    """Find that the job is suspended, by its owner or by Kueue."""
    main = facts.main
    if main is None or facts.phase in ("Failed", "Succeeded"):
        return
    if main["kind"] == "Job" and main.get("spec", {}).get("parallelism") == 0:
        name, patch = main["metadata"]["name"], '{"spec":{"parallelism":1}}'
        what, fix = (
            "creates no pods: its parallelism is 0",
            f"kubectl patch job {name} --type=merge -p '{patch}'",
        )
        yield Cause(kind="Suspended", who=f"Job {name}", what=what, fix=fix, certainty=CERTAIN)
    condition = pods.conditions(main).get("Suspended")
    if condition is None and not main.get("spec", {}).get("suspend"):
        return
    kind, name, queue = (
        main["kind"],
        main["metadata"]["name"],
        (main["metadata"].get("labels") or {}).get(QUEUE),
    )
    patch = "false"
    for key in reversed(f"spec.{job_kinds.KINDS[kind].suspend}".split(".")):
        patch = f'{{"{key}":{patch}}}'
    fix = f"kubectl patch {kind.lower()} {name} --type=merge -p '{patch}'"
    what = "is suspended: it creates no pods until it is resumed"
    if queue:
        message = _of_workload(facts, main) or "no quota, or no Kueue"
        what = f"is suspended until Kueue admits it from the queue {queue}: {message}"
        fix = KUEUE_FIX
    evidence = f"{kind} {name}: Suspended: {(condition or {}).get('message') or 'spec.suspend is true'}"
    yield Cause(
        kind="Suspended", who=f"{kind} {name}", what=what, fix=fix, evidence=(evidence,), certainty=CERTAIN
    )


def _of_workload(facts: Facts, *owners: Object | None) -> str:
    """Quote Kueue's Workload of a job or a pod: why it has no quota, or is not admitted; or else nothing."""
    uids = {owner["metadata"].get("uid") for owner in owners if owner}
    for workload in facts.of(WORKLOAD):
        if uids & {owner.get("uid") for owner in workload["metadata"].get("ownerReferences") or []}:
            for kind in ("QuotaReserved", "Admitted"):
                if (condition := pods.condition(workload, kind)).get("status") == "False":
                    return str(condition.get("message", ""))
    return ""


def not_scheduled(facts: Facts) -> Iterator[Cause]:
    """Find pods that no scheduler has looked at: gates, another scheduler, a claim of devices, a gang."""
    for pod in facts.pods:
        spec, scheduled = pod["spec"], pods.condition(pod, "PodScheduled")
        if spec.get("nodeName") or pods.finished(pod) or pods.deleted(pod):
            continue
        if gates := [gate["name"] for gate in spec.get("schedulingGates") or []]:
            kueue = any(gate in KUEUE_GATES for gate in gates)
            fix = "the controller that set it removes it: kubectl get pods -A shows whether it runs"
            what = f"is held back by its scheduling gate {', '.join(gates)}"
            if kueue:
                fix = KUEUE_FIX
                what += f": {_of_workload(facts, facts.main, pod) or 'Kueue has not admitted it'}"
            yield _of_pod(pod, "SchedulingGated", what, fix, CERTAIN, scheduled.get("message") or "")
        elif not scheduled and _age(facts, pod) > PATIENCE_SECONDS:
            yield _not_considered(facts, pod)


def _not_considered(facts: Facts, pod: Object) -> Cause:
    spec, age = pod["spec"], f"for {_age(facts, pod):.0f} s"
    scheduler = spec.get("schedulerName") or "default-scheduler"
    claims = [
        claim.get("resourceClaimName") or claim.get("resourceClaimTemplateName") or claim["name"]
        for claim in spec.get("resourceClaims") or []
    ]
    if scheduler != "default-scheduler":
        what = f"is not scheduled {age}: no scheduler {scheduler} has looked at it"
        return _of_pod(pod, "NoScheduler", what, f"install {scheduler}, or leave schedulerName out", LIKELY)
    if claims:
        what = (
            f"is not scheduled {age}: its ResourceClaim {', '.join(claims)} does not exist, or has no devices"
        )
        fix = "kubectl get resourceclaims,resourceclaimtemplates,deviceclasses,resourceslices"
        return _of_pod(pod, "DeviceClaim", what, fix, LIKELY)
    if group := spec.get("workloadRef") or spec.get("schedulingGroup"):
        what = f"is not scheduled {age}: its group waits until all of it has room: {group}"
        return _of_pod(pod, "Gang", what, "kubectl get podgroups", LIKELY)
    what = f"is not scheduled {age}: the scheduler has not decided yet"
    return _of_pod(
        pod, "NotScheduled", what, "kubectl get pods -n kube-system; trainyard cluster status", CONSEQUENCE
    )


def not_started(facts: Facts) -> Iterator[Cause]:
    """Find why a pod that has a node does not run: init containers, pulls, an idle node."""
    for pod in facts.pods:
        if pods.phase(pod) != "Pending" or not pod["spec"].get("nodeName") or pods.deleted(pod):
            continue
        container = pods.running_init_container(pod)
        seconds = facts.seconds_since(((container.get("state") or {}).get("running") or {}).get("startedAt"))
        if seconds > PATIENCE_SECONDS:
            yield _init_runs(
                pod, container["name"], seconds, facts.init_logs.get(pod["metadata"]["name"], "")
            )
            return
        if _age(facts, pod) > PATIENCE_SECONDS:
            yield from _idle(facts, pod)


def _init_runs(pod: Object, name: str, seconds: float, lines: Sequence[str]) -> Cause:
    """Find why an init container still runs: a program that its image does not have, or its last line."""
    waits = f"waits for its init container {name}, which"
    program, line = missing_program(lines)
    if program:
        fix = f"an image that has {program}, or a command that its image has"
        return _of_pod(
            pod, "MissingProgram", f"{waits} does not find its program {program}", fix, CERTAIN, line
        )
    what = f"{waits} has been running for {seconds:.0f} s"
    place = f"-c {name} -n {pod['metadata'].get('namespace', '')}"
    fix = f"kubectl logs {pod['metadata']['name']} {place} shows what it waits for"
    return _of_pod(pod, "InitRunning", what, fix, LIKELY, f"its last line: {lines[-1]}" if lines else "")


def _idle(facts: Facts, pod: Object) -> Iterator[Cause]:
    """Find why a pod does not start on a node that reports nothing."""
    node, name = pod["spec"]["nodeName"], pod["metadata"]["name"]
    last = next(
        (
            event
            for event in reversed(facts.events)
            if (event.get("involvedObject") or {}).get("name") == name
        ),
        {},
    )
    if last.get("reason") == "Pulling":
        seconds = facts.seconds_since(event_time(last))
        what = f"has been pulling its image for {seconds:.0f} s: {last.get('message', '')}"
        yield _of_pod(
            pod, "Pulling", what, "wait: the first pull of an image on a node can take minutes", POSSIBLE
        )
    elif facts.of("Node") and not facts.find("Node", node):
        what = f"is bound to node {node}, which does not exist"
        yield _of_pod(
            pod, "NodeMissing", what, "leave nodeName out, or correct it: kubectl get nodes", CERTAIN
        )
    elif not (pod.get("status") or {}).get("startTime"):
        what = f"is bound to node {node}, which has not started it for {_age(facts, pod):.0f} s"
        yield _of_pod(pod, "NodeIdle", what, f"kubectl describe node {node}: does its kubelet run?", POSSIBLE)
    else:
        what = f"has been starting on node {node} for {_age(facts, pod):.0f} s"
        yield _of_pod(pod, "Starting", what, f"kubectl describe pod {name}", CONSEQUENCE)


def no_controller(facts: Facts) -> Iterator[Cause]:
    """Find an object on which no controller acts: the operator does not run, or lost the object's kind."""
    main = facts.main
    if main is None or facts.pods or main.get("status") or main["kind"] == job_kinds.POD_TEMPLATE:
        return
    age = facts.seconds_since(main["metadata"].get("creationTimestamp"))
    about = {(event.get("involvedObject") or {}).get("name") for event in facts.events}
    if age < PATIENCE_SECONDS or main["metadata"]["name"] in about:
        return
    kind, operator = main["kind"], job_kinds.kind_of(main).operator
    what = f"has no pods and no status after {age:.0f} s: no controller acts on it"
    fix = (
        f'`kit.install("{operator}")`; kubectl get pods -A shows whether it runs'
        if operator
        else "trainyard cluster status"
    )
    manager = main.get("spec", {}).get("managedBy")
    what += f" (operator {operator} does not run)" if operator else ""
    what += f"; managedBy leaves it to {manager}" if manager else ""
    yield Cause(
        kind="NoOperator", who=f"{kind} {main['metadata']['name']}", what=what, fix=fix, certainty=LIKELY
    )


def kept_by_finalizers(facts: Facts) -> Iterator[Cause]:
    """Find objects whose deletion was requested, and that a finalizer keeps."""
    items = [*([facts.main] if facts.main else []), *facts.pods]
    for item in items:
        meta = item["metadata"]
        keepers = [name for name in meta.get("finalizers") or [] if name != JOB_TRACKING]
        overdue = facts.seconds_since(meta.get("deletionTimestamp"))  # which includes the grace period
        if keepers and overdue > PATIENCE_SECONDS / 2:
            kind = item.get("kind", "Pod")
            patch = '{"metadata":{"finalizers":null}}'
            command = f"kubectl patch {kind.lower()} {meta['name']} --type=merge -p '{patch}'"
            fix = f"its owner removes it; or {command}"
            subject = pod_name(item) if kind == "Pod" else f"{kind} {meta['name']}"
            what = f"is being deleted, but is kept by its finalizer {', '.join(keepers)}"
            yield Cause(kind="Finalizer", who=subject, what=what, fix=fix, certainty=CERTAIN)


def deleted_after_success(facts: Facts) -> Iterator[Cause]:
    """Find that the run's object was deleted after it had succeeded, as when its time to live has expired."""
    if facts.main is not None:
        return
    for event in facts.events:
        about = event.get("involvedObject") or {}
        if about.get("name") == facts.run and event.get("reason") in ("Completed", "JobSucceeded"):
            yield Cause(
                kind="Expired",
                who=f"{about.get('kind')} {facts.run}",
                what="succeeded and was deleted afterwards, by ttlSecondsAfterFinished or by a user",
                fix="leave ttlSecondsAfterFinished out to keep it and its logs",
                evidence=(f"{about.get('kind')} {facts.run}: {event.get('message', '')}",),
                certainty=CERTAIN,
                time=event_time(event),
            )


def gave_up(facts: Facts) -> Iterator[Cause]:
    """Find the limit of a job by which its controller ended it."""
    main = facts.main
    message = None if main is None else job_kinds.failure(main, facts.pods)
    if main is None or message is None or main["kind"] == job_kinds.POD_TEMPLATE:
        return
    text, limits = message.lower(), main["spec"].get("runPolicy") or main["spec"]
    kind, certainty = "JobFailed", CONSEQUENCE
    what, fix = f"has failed: {message}", "`run.logs()`; kubectl describe"
    if "deadline" in text or "active longer" in text:
        kind, certainty = "JobDeadline", CERTAIN
        what = "was ended: it ran longer than its activeDeadlineSeconds"
        fix = "raise activeDeadlineSeconds of the job, or train for fewer epochs"
    elif "backoff limit" in text:
        count = limits.get("backoffLimit", 6)
        kind, what = (
            "BackoffLimit",
            f"was ended: its pods failed more often than its backoffLimit of {count} allows",
        )
        fix = "`run.logs()` of the rank that failed; or raise backoffLimit, which restarts it more often"
        if main["kind"] != "Job" and not any(pods.phase(pod) == "Failed" for pod in facts.pods):
            certainty = CERTAIN  # the operator has deleted the pods that would say more
    yield Cause(
        kind=kind,
        who=f"{main['kind']} {main['metadata']['name']}",
        what=what,
        fix=fix,
        evidence=(message,),
        certainty=certainty,
    )


def overdue(facts: Facts) -> Iterator[Cause]:
    """Find a job past its deadline that its operator has not ended: some act only on changes."""
    main = facts.main
    if main is None or main["kind"] == job_kinds.POD_TEMPLATE or facts.phase not in ("Pending", "Running"):
        return
    limit = (main["spec"].get("runPolicy") or main["spec"]).get("activeDeadlineSeconds")
    seconds = facts.seconds_since((main.get("status") or {}).get("startTime"))
    if limit and seconds > limit + PATIENCE_SECONDS:
        what = f"is past its activeDeadlineSeconds of {limit}, and its operator has not ended it"
        fix = "it is ended with the next change of its pods; delete it, or raise activeDeadlineSeconds"
        subject = f"{main['kind']} {main['metadata']['name']}"
        yield Cause(kind="JobDeadline", who=subject, what=what, fix=fix, certainty=LIKELY)


def _of_pod(pod: Object, kind: str, what: str, fix: str, certainty: int, evidence: str = "") -> Cause:
    return Cause(
        kind=kind,
        who=pod_name(pod),
        what=what,
        fix=fix,
        evidence=(evidence,) if evidence else (),
        certainty=certainty,
        time=pod["metadata"].get("creationTimestamp") or "",
        rank=pods.replica_id(pod),
    )


def _age(facts: Facts, pod: Object) -> float:
    return facts.seconds_since(pod["metadata"].get("creationTimestamp"))


RULES = (
    suspended,
    not_scheduled,
    not_started,
    no_controller,
    kept_by_finalizers,
    deleted_after_success,
    gave_up,
    overdue,
)
