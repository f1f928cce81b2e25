"""Checks before a cluster is created: credentials, project, APIs, permissions, machines and quotas."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from trainyard_kit.clouds.checks import Check, Probe, Report, failed, ok, run, trainer_image, warn
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

SPOT = "PREEMPTIBLE_"  # how quotas of spot machines begin
GPU_FAMILIES = "GPUS_PER_GPU_FAMILY"
NEEDED = [  # permissions; docs/gke.md lists them
    f"{api}.{action}" for api, actions in FACTS["permissions"].items() for action in actions.split()
]


def check(session: GcpSession, plan: GkePlan) -> Report:
    """Check what may prevent a cluster; nothing is created."""
    request = (session, plan)
    account = [
        Probe("credentials", lambda: _credentials(session), stops=True),
        Probe("project", lambda: _project(session), stops=True),
        Probe("APIs", lambda: _apis(session)),
        Probe("billing", lambda: _billing(session), needed=False),
        Probe("permissions", lambda: _permissions(session)),
        Probe("trainer image", trainer_image, needed=False),
    ]
    compute = [
        Probe("zone", lambda: _zone(session), stops=True),
        Probe("accelerator", lambda: _accelerator(*request)),
        Probe("machine type", lambda: _machine(*request)),
        Probe("name", lambda: _name(*request)),
        Probe("quotas", lambda: quotas(*request), needed=False),
    ]
    enabled = cache(lambda: "compute.googleapis.com" not in disabled_apis(session))
    probes = [*account, *(_if_enabled(probe, enabled) for probe in compute)]
    return run(probes, about=f'cluster "{plan.tags.cluster}" in {session.zone}')


def _if_enabled(probe: Probe, enabled: Callable[[], bool]) -> Probe:
    """Run a probe where Compute Engine's API is on: a new project's other problems are told in one round."""
    text, fix = "not checked yet: Compute Engine's API is not enabled", "enable the APIs, then check again"
    return replace(probe, ask=lambda: probe.ask() if enabled() else warn(probe.name, text, fix))


def _credentials(session: GcpSession) -> Check:
    origin = find_credentials(os.environ, Path.home())[0]
    account = (
        ""
        if endpoint("container").startswith("http:")
        else getattr(session.credentials, "service_account_email", "")
    )
    return ok("credentials", f"{origin}{f'; {account}' if account else ''}")


def _project(session: GcpSession) -> Check:
    answer = session.request("GET", "cloudresourcemanager", f"projects/{session.project}")
    if answer.get("state") != "ACTIVE":
        text = f"{session.project} is {answer.get('state', 'gone').lower().replace('_', ' ')}"
        return failed("project", text, "choose another one: gcloud projects list")
    return ok("project", session.project)


def disabled_apis(session: GcpSession) -> list[str]:
    """List the hosts of the APIs that the kit uses and the project has not enabled."""
    root, hosts = f"projects/{session.project}", [f"{api}.googleapis.com" for api in FACTS["apis"]]
    names = [f"{root}/services/{host}" for host in hosts]
    services = session.request("GET", "serviceusage", f"{root}/services:batchGet", names=names)["services"]
    enabled = {service["config"]["name"] for service in services if service["state"] == "ENABLED"}
    return [host for host in hosts if host not in enabled]


def _apis(session: GcpSession) -> Check:
    if not (off := disabled_apis(session)):
        return ok("APIs", "all that are needed are enabled")
    link = f"{CONSOLE}/flows/enableapi?apiid={','.join(off)}&project={session.project}"
    fix = f"gcloud services enable {' '.join(off)} --project={session.project}\nor at {link}"
    return failed("APIs", f"not enabled: {', '.join(off)}", fix)


def _billing(session: GcpSession) -> Check:
    answer = session.request("GET", "cloudbilling", f"projects/{session.project}/billingInfo")
    if answer.get("billingEnabled"):
        return ok("billing", answer.get("billingAccountName", "enabled"))
    fix = f"link a billing account at {CONSOLE}/billing/linkedaccount?project={session.project}"
    return failed("billing", f"no billing account is linked to {session.project}", fix)


def _permissions(session: GcpSession) -> Check:
    path, body = f"projects/{session.project}:testIamPermissions", {"permissions": NEEDED}
    answer = session.request("POST", "cloudresourcemanager", path, body)
    missing = [permission for permission in NEEDED if permission not in answer.get("permissions", ())]
    if not missing:
        return ok("permissions", f"all {len(NEEDED)} that are needed")
    line = f"gcloud projects add-iam-policy-binding {session.project} --member=user:YOU --role="
    fix = "\n".join(line + role for role in dict.fromkeys(map(role_for, missing)))
    return failed("permissions", f"missing: {', '.join(missing)}", fix)


def _zone(session: GcpSession) -> Check:
    listed = session.every("compute", f"projects/{session.project}/zones", "items")
    available = [item["name"] for item in listed if item.get("status") == "UP"]
    return _known("zone", session.zone, available, "Google Cloud") or ok("zone", session.zone)


def _accelerator(session: GcpSession, plan: GkePlan) -> Check:
    kind, gpus = plan.machines.accelerator, plan.machines.gpus
    if not kind:
        return ok("accelerator", "none is asked for")
    offered = accelerators(session)
    if wrong := _known("accelerator", kind, offered, "Google Cloud"):
        return wrong
    if (most := offered[kind].get(session.zone)) is None:
        near = sorted(offered[kind], key=lambda zone: (not zone.startswith(session.region), zone))
        return failed("accelerator", f"{session.zone} has no {kind}", _meant("zone", near))
    if gpus > most:
        text = f"a machine has at most {most} {kind}, and {gpus} are asked for"
        return failed("accelerator", text, f"`gpus={most}`")
    return ok("accelerator", f"{gpus} {kind} in each machine")


def _machine(session: GcpSession, plan: GkePlan) -> Check:
    machine_name = plan.machines.type
    if description := machine_type(session, machine_name):
        return ok(
            "machine type",
            f"{machine_name}: {description['guestCpus']} vCPUs, {description['memoryMb'] / 1024:g} GiB",
        )
    path = f"projects/{session.project}/zones/{session.zone}/machineTypes"
    known = [item["name"] for item in session.every("compute", path, "items")]
    return _known("machine_type", machine_name, known, session.zone) or ok("machine type", machine_name)


def _name(session: GcpSession, plan: GkePlan) -> Iterator[Check]:
    name, all_parts = plan.tags.cluster, parts(session, plan.tags.cluster)
    for part in (all_parts["cluster"], all_parts["network"]):
        item = part.get(session)
        if item is not None and not is_ours(item, name):
            text = f'there is a {part.name} for the name "{name}", and it is not the kit\'s'
            yield failed("name", text, f'`name="{name}-2"`')


def quotas(session: GcpSession, plan: GkePlan, *, new: bool = True) -> Iterator[Check]:
    """Check each quota that a cluster uses.

    Args:
        session: The project and zone.
        plan: The cluster.
        new: Whether it is created; else only its training nodes are, beside those that exist.
    """
    requested, project = required(session, plan, new=new), f"projects/{session.project}"
    places = {
        session.region: session.request("GET", "compute", f"{project}/regions/{session.region}"),
        "all regions": session.request("GET", "compute", project),
    }
    listed = [quota for place in places.values() for quota in place.get("quotas", ())]
    limits = {quota["metric"]: quota["limit"] for quota in listed}
    for metric in [metric for metric in requested if metric.startswith(SPOT) and limits.get(metric) == 0]:
        # https://cloud.google.com/compute/resource-usage#spot-vms-quotas: before any was granted
        plain = metric.removeprefix(SPOT) if "GPUS" in metric else _of_cores(plan.machines.type)
        requested[plain] = requested.get(plain, 0) + requested.pop(metric)
    shortages = [
        metric
        for metric, count in requested.items()
        if count and metric.endswith(("_GPUS", "_CPUS", GPU_FAMILIES))
    ]
    for metric in (metric for metric in shortages if metric not in limits):
        page = f"{CONSOLE}/iam-admin/quotas?project={session.project}"
        text = f"{requested[metric]:g} needed in {session.region}; Compute Engine does not report this quota"
        yield warn(f"quota {metric}", text, f"look for the family at {page}: 0 is usual in a new project")
    for where, place in places.items():
        for quota in place.get("quotas", ()):
            metric, room = quota["metric"], quota["limit"] - quota["usage"]
            if not (needed := requested.get(metric)):
                continue
            text = f"{needed:g} needed, {room:g} of {quota['limit']:g} free in {where}"
            link = f"{CONSOLE}/iam-admin/quotas?project={session.project}&metric={metric}"
            alternative = f", `spot={not plan.machines.spot}`" if "GPU" in metric else ""
            fix = f"ask for more of {metric} at {link}; or fewer nodes, another region{alternative}"
            good = needed <= room
            yield ok(f"quota {metric}", text) if good else failed(f"quota {metric}", text, fix)


def required(session: GcpSession, plan: GkePlan, *, new: bool = True) -> dict[str, float]:
    """The quotas that a cluster uses, by their names in Compute Engine."""
    machines, system, spot = plan.machines, int(new), SPOT if plan.machines.spot else ""
    metrics, cores = (
        count * (machine_type(session, name) or {}).get("guestCpus", 0)
        for name, count in ((SYSTEM_MACHINE, system), (machines.type, machines.count))
    )
    disks = machines.disk_gb * machines.count if disk_type(machines.type) == "pd-balanced" else 0
    of_cores = f"{spot}CPUS" if spot else _of_cores(machines.type)
    quantities = {
        "CPUS": metrics,
        of_cores: cores if of_cores != "CPUS" else metrics + cores,
        "CPUS_ALL_REGIONS": metrics + cores,
        "IN_USE_ADDRESSES": 0 if plan.private else system + machines.count,
        "SSD_TOTAL_GB": system * SYSTEM_DISK_GB + disks,
        "NETWORKS": int(new and "network" not in plan.request),
    }
    if machines.accelerator:
        kind = machines.accelerator.removeprefix("nvidia-").removeprefix("tesla-")
        if not kind.startswith("a100"):  # the only kind whose memory is in the quota's name
            kind = re.sub(r"-\d+gb$", "", kind)
        kind = kind.replace("-", "_").upper()
        metric = f"NVIDIA_{kind}_GPUS" if kind in FACTS["quotas"] else GPU_FAMILIES
        quantities[spot + metric] = quantities["GPUS_ALL_REGIONS"] = machines.gpus * machines.count
    return quantities


def _of_cores(machine: str) -> str:
    family = machine.partition("-")[0].upper()
    return "CPUS" if family in FACTS["shared_cpus"] else f"{family}_CPUS"


def _known(option: str, requested: str, known: Iterable[str], owner: str) -> Check | None:
    """Check a word against what exists; None if it is there."""
    if requested in (known := sorted(known)):
        return None
    word = option.replace("_", " ")
    near = [
        *get_close_matches(requested, known, cutoff=0.5),
        *(name for name in known if name.startswith(requested)),
    ]
    return failed(word, f'{owner} has no {word} "{requested}"', _meant(option, near or known))


def _meant(option: str, near: Iterable[str]) -> str:
    listed = list(dict.fromkeys(near))[:4]
    return "did you mean " + " or ".join(f'{option}="{item}"' for item in listed) + "?"
