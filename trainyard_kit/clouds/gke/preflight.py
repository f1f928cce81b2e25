"""Checks of what may prevent creating a GKE cluster: project, APIs, permissions, machines, quotas."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from trainyard_kit.checks import Check, Probe, Report, failed, ok, run, trainer_image, warn
from trainyard_kit.clouds.gke.client_errors import CONSOLE, role_for
from trainyard_kit.clouds.gke.credentials import find_credentials
from trainyard_kit.clouds.gke.machines import (
    FACTS,
    SYSTEM_MACHINE,
    GkePlan,
    accelerators,
    disk_type,
    machine_type,
)
from trainyard_kit.clouds.gke.parts import is_ours, parts
from trainyard_kit.clouds.gke.session import GcpSession, endpoint
from trainyard_kit.clouds.price_table import SYSTEM_DISK_GB

SPOT = "PREEMPTIBLE_"  # prefix of the quotas of spot machines
GPU_FAMILIES = "GPUS_PER_GPU_FAMILY"
PERMISSIONS = [  # docs/gke.md lists them
    f"{api}.{action}" for api, actions in FACTS["permissions"].items() for action in actions.split()
]


def check(session: GcpSession, plan: GkePlan) -> Report:
    """Check what may prevent creating a cluster; nothing is created."""
    request = (session, plan)
    account = [
        Probe("credentials", lambda: _credentials(session), blocking=True),
        Probe("project", lambda: _project(session), blocking=True),
        Probe("APIs", lambda: _apis(session)),
        Probe("billing", lambda: _billing(session), required=False),
        Probe("permissions", lambda: _permissions(session)),
        Probe("trainer image", trainer_image, required=False),
    ]
    compute = [
        Probe("zone", lambda: _zone(session), blocking=True),
        Probe("accelerator", lambda: _accelerator(*request)),
        Probe("machine type", lambda: _machine(*request)),
        Probe("name", lambda: _name(*request)),
        Probe("quotas", lambda: quotas(*request), required=False),
    ]
    enabled = cache(lambda: "compute.googleapis.com" not in disabled_apis(session))
    probes = [*account, *(_if_enabled(probe, enabled) for probe in compute)]
    return run(probes, about=f'cluster "{plan.tags.cluster}" in {session.zone}')


def _if_enabled(probe: Probe, enabled: Callable[[], bool]) -> Probe:
    """Run a probe only if Compute Engine's API is enabled, so that a new project's other checks run."""
    text, fix = "not checked yet: Compute Engine's API is not enabled", "enable the APIs, then check again"
    return replace(probe, check=lambda: probe.check() if enabled() else warn(probe.name, text, fix))


def _credentials(session: GcpSession) -> Check:
    origin = find_credentials(os.environ, Path.home())[0]
    simulated = endpoint("container").startswith("http:")  # needs no credentials
    account = "" if simulated else getattr(session.credentials, "service_account_email", "")
    return ok("credentials", f"{origin}{account and f'; {account}'}")


def _project(session: GcpSession) -> Check:
    answer = session.request("GET", "cloudresourcemanager", f"projects/{session.project}")
    if answer.get("state") != "ACTIVE":
        text = f"{session.project} is {answer.get('state', 'gone').lower().replace('_', ' ')}"
        return failed("project", text, "choose another one: gcloud projects list")
    return ok("project", session.project)


def disabled_apis(session: GcpSession) -> list[str]:
    """List the hosts of the APIs that the kit needs and the project has not enabled."""
    root, hosts = f"projects/{session.project}", [f"{api}.googleapis.com" for api in FACTS["apis"]]
    names = [f"{root}/services/{host}" for host in hosts]
    services = session.request("GET", "serviceusage", f"{root}/services:batchGet", names=names)["services"]
    enabled = {service["config"]["name"] for service in services if service["state"] == "ENABLED"}
    return [host for host in hosts if host not in enabled]


def _apis(session: GcpSession) -> Check:
    if not (disabled := disabled_apis(session)):
        return ok("APIs", "all required APIs are enabled")
    link = f"{CONSOLE}/flows/enableapi?apiid={','.join(disabled)}&project={session.project}"
    fix = f"gcloud services enable {' '.join(disabled)} --project={session.project}\nor at {link}"
    return failed("APIs", f"not enabled: {', '.join(disabled)}", fix)


def _billing(session: GcpSession) -> Check:
    answer = session.request("GET", "cloudbilling", f"projects/{session.project}/billingInfo")
    if answer.get("billingEnabled"):
        return ok("billing", answer.get("billingAccountName", "enabled"))
    fix = f"link a billing account at {CONSOLE}/billing/linkedaccount?project={session.project}"
    return failed("billing", f"no billing account is linked to {session.project}", fix)


def _permissions(session: GcpSession) -> Check:
    path, body = f"projects/{session.project}:testIamPermissions", {"permissions": PERMISSIONS}
    answer = session.request("POST", "cloudresourcemanager", path, body)
    missing = [permission for permission in PERMISSIONS if permission not in answer.get("permissions", ())]
    if not missing:
        return ok("permissions", f"all {len(PERMISSIONS)} required permissions")
    command = f"gcloud projects add-iam-policy-binding {session.project} --member=user:YOU --role="
    fix = "\n".join(command + role for role in dict.fromkeys(map(role_for, missing)))
    return failed("permissions", f"missing: {', '.join(missing)}", fix)


def _zone(session: GcpSession) -> Check:
    listed = session.paginate("compute", f"projects/{session.project}/zones", "items")
    available = [item["name"] for item in listed if item.get("status") == "UP"]
    return _unknown("zone", session.zone, available, "Google Cloud") or ok("zone", session.zone)


def _accelerator(session: GcpSession, plan: GkePlan) -> Check:
    kind, gpus = plan.machines.accelerator, plan.machines.gpus
    if not kind:
        return ok("accelerator", "none requested")
    offered = accelerators(session)
    if failure := _unknown("accelerator", kind, offered, "Google Cloud"):
        return failure
    if (most := offered[kind].get(session.zone)) is None:
        near = sorted(offered[kind], key=lambda zone: (not zone.startswith(session.region), zone))
        return failed("accelerator", f"{session.zone} has no {kind}", _suggest("zone", near))
    if gpus > most:
        text = f"a machine has at most {most} {kind}, and {gpus} are requested"
        return failed("accelerator", text, f"`gpus={most}`")
    return ok("accelerator", f"{gpus} {kind} in each machine")


def _machine(session: GcpSession, plan: GkePlan) -> Check:
    machine_name = plan.machines.type
    if description := machine_type(session, machine_name):
        memory = f"{description['memoryMb'] / 1024:g} GiB"
        return ok("machine type", f"{machine_name}: {description['guestCpus']} vCPUs, {memory}")
    path = f"projects/{session.project}/zones/{session.zone}/machineTypes"
    known = [item["name"] for item in session.paginate("compute", path, "items")]
    return _unknown("machine_type", machine_name, known, session.zone) or ok("machine type", machine_name)


def _name(session: GcpSession, plan: GkePlan) -> Iterator[Check]:
    name, all_parts = plan.tags.cluster, parts(session, plan.tags.cluster)
    for part in (all_parts["cluster"], all_parts["network"]):
        item = part.get(session)
        if item is not None and not is_ours(item, name):
            text = f'there is a {part.name} for the name "{name}" that is not the kit\'s'
            yield failed("name", text, f'`name="{name}-2"`')


def quotas(session: GcpSession, plan: GkePlan, *, new: bool = True) -> Iterator[Check]:
    """Check each quota that a cluster uses.

    Args:
        session: The project and zone.
        plan: The cluster.
        new: Whether the cluster is created; otherwise only its training nodes are added.
    """
    requested, project = required(session, plan, new=new), f"projects/{session.project}"
    places = {
        session.region: session.request("GET", "compute", f"{project}/regions/{session.region}"),
        "all regions": session.request("GET", "compute", project),
    }
    listed = [quota for place in places.values() for quota in place.get("quotas", ())]
    limits = {quota["metric"]: quota["limit"] for quota in listed}
    for metric in [metric for metric in requested if metric.startswith(SPOT) and limits.get(metric) == 0]:
        # A spot quota of 0 is not in use: https://cloud.google.com/compute/resource-usage#spot-vms-quotas
        standard = metric.removeprefix(SPOT) if "GPUS" in metric else _cpu_metric(plan.machines.type)
        requested[standard] = requested.get(standard, 0) + requested.pop(metric)
    for metric, count in requested.items():
        if count and metric not in limits and metric.endswith(("_GPUS", "_CPUS", GPU_FAMILIES)):
            page = f"{CONSOLE}/iam-admin/quotas?project={session.project}"
            text = f"{count:g} needed in {session.region}; Compute Engine does not report this quota"
            yield warn(f"quota {metric}", text, f"look for the family at {page}: 0 is usual in a new project")
    for where, place in places.items():
        for quota in place.get("quotas", ()):
            metric, available = quota["metric"], quota["limit"] - quota["usage"]
            if not (needed := requested.get(metric)):
                continue
            text = f"{needed:g} needed, {available:g} of {quota['limit']:g} free in {where}"
            link = f"{CONSOLE}/iam-admin/quotas?project={session.project}&metric={metric}"
            alternative = f", `spot={not plan.machines.spot}`" if "GPU" in metric else ""
            fix = f"request more of {metric} at {link}; or fewer nodes, another region{alternative}"
            enough = needed <= available
            yield ok(f"quota {metric}", text) if enough else failed(f"quota {metric}", text, fix)


def required(session: GcpSession, plan: GkePlan, *, new: bool = True) -> dict[str, float]:
    """The quotas that a cluster uses, by their names in Compute Engine."""
    machines, system, spot = plan.machines, int(new), SPOT if plan.machines.spot else ""
    system_cpus, cpus = (
        count * (machine_type(session, name) or {}).get("guestCpus", 0)
        for name, count in ((SYSTEM_MACHINE, system), (machines.type, machines.count))
    )
    disks = machines.disk_gb * machines.count if disk_type(machines.type) == "pd-balanced" else 0
    cpu_metric = f"{spot}CPUS" if spot else _cpu_metric(machines.type)
    quantities = {
        "CPUS": system_cpus,
        cpu_metric: cpus if cpu_metric != "CPUS" else system_cpus + cpus,
        "CPUS_ALL_REGIONS": system_cpus + cpus,
        "IN_USE_ADDRESSES": 0 if plan.private else system + machines.count,
        "SSD_TOTAL_GB": system * SYSTEM_DISK_GB + disks,
        "NETWORKS": int(new and "network" not in plan.request),
    }
    if machines.accelerator:
        kind = machines.accelerator.removeprefix("nvidia-").removeprefix("tesla-")
        if not kind.startswith("a100"):  # the only GPU with its memory in the quota's name
            kind = re.sub(r"-\d+gb$", "", kind)
        kind = kind.replace("-", "_").upper()
        metric = f"NVIDIA_{kind}_GPUS" if kind in FACTS["quotas"] else GPU_FAMILIES
        quantities[spot + metric] = quantities["GPUS_ALL_REGIONS"] = machines.gpus * machines.count
    return quantities


def _cpu_metric(machine: str) -> str:
    family = machine.partition("-")[0].upper()
    return "CPUS" if family in FACTS["shared_cpus"] else f"{family}_CPUS"


def _unknown(option: str, requested: str, known: Iterable[str], owner: str) -> Check | None:
    """Build the failure for a value that does not exist; None if it does."""
    if requested in (known := sorted(known)):
        return None
    title = option.replace("_", " ")
    near = get_close_matches(requested, known, cutoff=0.5)
    near += [name for name in known if name.startswith(requested)]
    return failed(title, f'{owner} has no {title} "{requested}"', _suggest(option, near or known))


def _suggest(option: str, near: Iterable[str]) -> str:
    names = list(dict.fromkeys(near))[:4]
    return "did you mean " + " or ".join(f'{option}="{name}"' for name in names) + "?"
