"""What is looked at before anything is paid for in a project: who asks, whether the project can, what it may
have, and whether what was asked for exists there. Each answer comes with the link or the line that mends it.
"""

import difflib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from clouds import tags
from clouds.cluster_preflight import ClusterPreflight, Probe, failed
from clouds.google import permissions, quotas
from clouds.google.client_errors import GcpError
from clouds.google.network import network_of
from clouds.google.owned import read
from clouds.google.session import endpoint, find
from clouds.google.stack import GkePlan
from clouds.google.token import TOKEN
from kitlib.clusters.checks import Check, Report, ok

APIS = (
    "artifactregistry",
    "cloudbuild",
    "cloudscheduler",
    "compute",
    "container",
    "file",
    "iam",
    "storage",
)


def check(plan: GkePlan) -> Report:
    """Look at all that may stand in the way of a cluster, and return what was found.

    Args:
        plan: The cluster.
    """
    return GkePreflight(plan).report()


class GkePreflight(ClusterPreflight):
    """The checks of one plan.

    Args:
        plan: The cluster.
    """

    kind = "a GKE cluster"

    def __init__(self, plan: GkePlan) -> None:
        super().__init__(plan, plan.session.zone)

    def probes(self) -> list[Probe]:
        return [
            Probe("credentials", self.credentials, stops=True),
            Probe("project", self.project, stops=True),
            Probe("APIs", self.apis, stops=True),
            Probe("billing", self.billing, needed=False),
            Probe("zone", self.zone, stops=True),
            Probe("accelerator", self.accelerator),
            Probe("machine type", self.machine),
            Probe("permissions", self.permissions),
            Probe("name", self.name),
            Probe("quotas", self.quotas, needed=False),
        ]

    def credentials(self) -> Check:
        """Return which credentials win, and whose they are."""
        if endpoint("container").startswith("http://"):
            return ok("credentials", f"nobody signs in at {endpoint('container')}")
        found = self.session.credentials
        whose = getattr(found, "service_account_email", "") or getattr(found, "signer_email", "")
        return ok("credentials", f"{winner()}{f': {whose}' if whose else ''}")

    def project(self) -> Check:
        """Check whether the project is there."""
        project = self.session.project
        found = self.session.rest("cloudresourcemanager", "projects.get", name=f"projects/{project}")
        if found.get("state") != "ACTIVE":
            words = f"{project} is {found.get('state', 'gone').lower().replace('_', ' ')}"
            return failed("project", words, "take another one: gcloud projects list")
        return ok("project", project)

    def apis(self) -> Check:
        """Check whether the services that a cluster needs are enabled."""
        project = self.session.project
        parent = f"projects/{project}"
        hosts = [f"{each}.googleapis.com" for each in APIS]
        found = self.session.rest(
            "serviceusage",
            "services.batchGet",
            parent=parent,
            names=[f"{parent}/services/{host}" for host in hosts],
        )
        on = {each["config"]["name"] for each in found["services"] if each["state"] == "ENABLED"}
        off = [host for host in hosts if host not in on]
        if not off:
            return ok("APIs", "all that are needed are enabled")
        link = f"https://console.cloud.google.com/flows/enableapi?apiid={','.join(off)}&project={project}"
        fix = f"gcloud services enable {' '.join(off)} --project={project}\nor at {link}"
        return failed("APIs", f"not enabled: {', '.join(off)}", fix)

    def billing(self) -> Check:
        """Check whether somebody pays for the project."""
        project = self.session.project
        found = self.session.rest("cloudbilling", "projects.getBillingInfo", name=f"projects/{project}")
        if not found.get("billingEnabled"):
            link = f"https://console.cloud.google.com/billing/linkedaccount?project={project}"
            return failed("billing", f"nobody pays for {project}", f"link a billing account at {link}")
        return ok("billing", found.get("billingAccountName", "enabled"))

    def zone(self) -> Check:
        """Check whether there is such a zone, and it is up."""
        wanted = self.session.zone
        found = {
            each["name"]: each
            for each in self.session.every("compute", "zones.list", "items", project=self.session.project)
        }
        if wanted not in found:
            near = difflib.get_close_matches(wanted, found, n=3, cutoff=0.6)
            near += [each for each in sorted(found) if each.startswith(wanted)][:3]
            return failed(
                "zone", f'Google Cloud has no zone "{wanted}"', _meant("zone", near or sorted(found))
            )
        if found[wanted].get("status") != "UP":
            others = [each for each in found if each.startswith(self.session.region) and each != wanted]
            return failed("zone", f"{wanted} is down", _meant("zone", others))
        return ok("zone", wanted)

    def accelerator(self) -> Check:
        """Check whether the zone has the GPUs; if not, which has."""
        machines = self.plan.machines
        if machines.accelerator is None:
            return ok("accelerator", "none is asked for")
        offered = dict(self._offered())
        wanted = machines.accelerator
        if wanted not in offered:
            near = difflib.get_close_matches(wanted, offered, n=3, cutoff=0.5)
            words = f'Google Cloud has no accelerator "{wanted}"'
            return failed("accelerator", words, _meant("accelerator", near or sorted(offered)))
        zones = offered[wanted]
        if self.session.zone not in zones:
            near = sorted(zones, key=lambda each: (not each.startswith(self.session.region), each))
            here = sorted(each for each in offered if self.session.zone in offered[each])
            other = f", or one that it has: {', '.join(here)}" if here else ""
            words = f"{self.session.zone} has no {wanted}"
            return failed("accelerator", words, f"{_meant('zone', near)}{other}")
        most = zones[self.session.zone]
        if machines.gpus > most:
            words = f"a machine has at most {most} {wanted}, and {machines.gpus} are asked for"
            return failed("accelerator", words, f"gpus={most}")
        return ok("accelerator", f"{machines.gpus} {wanted} in each machine")

    def machine(self) -> Check:
        """Check whether the zone has the machine type."""
        wanted, where = self.plan.machines.machine_type, self._where
        found = find(self.session.rest, "compute", "machineTypes.get", machineType=wanted, **where)
        if found is None:
            known = [
                each["name"] for each in self.session.every("compute", "machineTypes.list", "items", **where)
            ]
            near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.6) or sorted(known)[:3]
            words = f'{self.session.zone} has no machine type "{wanted}"'
            return failed("machine type", words, _meant("machine_type", near))
        return ok("machine type", f"{wanted}: {found['guestCpus']} vCPUs, {found['memoryMb'] / 1024:g} GiB")

    def permissions(self) -> Check:
        """Check whether the user may do all that a cluster needs."""
        asked = list(permissions.NEEDED)
        found = self.session.rest(
            "cloudresourcemanager",
            "projects.testIamPermissions",
            resource=f"projects/{self.session.project}",
            body={"permissions": asked},
        )
        missing = [each for each in asked if each not in found.get("permissions", ())]
        if not missing:
            return ok("permissions", f"all {len(asked)} that are needed")
        lines = dict.fromkeys(permissions.grant(self.session.project, each) for each in missing)
        return failed("permissions", f"missing: {', '.join(missing)}", "\n".join(lines))

    def name(self) -> Iterator[Check]:
        """Yield whether the cluster's name, and its network's, are free."""
        name = self.plan.tags.cluster
        parent = f"projects/{self.session.project}/locations/-"
        listed = self.session.container("list_clusters", parent=parent).clusters
        same = [each for each in listed if (each.name, each.location) == (name, self.session.zone)]
        for each in same:
            yield self.taken(tags.read(each.resource_labels))
        network = network_of(name)
        found = find(
            self.session.rest, "compute", "networks.get", project=self.session.project, network=network
        )
        if found is not None and tags.read(read(found.get("description", ""))) is None:
            yield failed(
                "name", f'there is a network "{network}", and it is not the kit\'s', f'name="{name}-2"'
            )
        elif not same:
            yield ok("name", f"{name} is free")

    def quotas(self) -> Iterable[Check]:
        """Check whether the project may have so much."""
        return [ok("quotas", "it is there already")] if self.there else quotas.check(self.plan)

    @property
    def _where(self) -> dict[str, str]:
        return {"project": self.session.project, "zone": self.session.zone}

    def _offered(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Yield each accelerator with its zones, and how many of it a machine there has at most."""
        found: dict[str, dict[str, int]] = {}
        method = "acceleratorTypes.aggregatedList"
        for scope in self.session.every("compute", method, "items", project=self.session.project):
            for each in scope.get("acceleratorTypes", ()):
                zone = each["zone"].rpartition("/")[2]
                found.setdefault(each["name"], {})[zone] = each.get("maximumCardsPerInstance", 1)
        yield from found.items()


def elsewhere(plan: GkePlan) -> str:
    """Suggest alternatives where a zone has no capacity: other zones, the near ones first, and other
    GPUs of this one. Empty if nobody tells.
    """
    looks, session, wanted = GkePreflight(plan), plan.session, plan.machines.accelerator
    try:
        if wanted is None:
            listed = session.every("compute", "zones.list", "items", project=session.project)
            zones, here = [each["name"] for each in listed], []
        else:
            offered = dict(looks._offered())
            zones = list(offered.get(wanted, ()))
            here = sorted(each for each in offered if session.zone in offered[each] and each != wanted)
    except GcpError:
        return ""
    zones = sorted(
        (each for each in zones if each != session.zone),
        key=lambda each: (not each.startswith(session.region), each),
    )
    places = [f'zone="{each}"' for each in zones[:4]]
    others = [f'accelerator="{each}" in this one' for each in here if not each.endswith("-vws")]
    return " or ".join([*places, *others[:3]])


def winner() -> str:
    """Return which of the places for credentials google-auth takes, in its order."""
    if os.environ.get(TOKEN):
        return f"the token in {TOKEN}"
    if named := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return f"GOOGLE_APPLICATION_CREDENTIALS ({named})"
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud")
    if (folder / "application_default_credentials.json").is_file():
        return "gcloud's application default credentials"
    return "this machine's account"


def _meant(word: str, near: list[str]) -> str:
    return "did you mean " + " or ".join(f'{word}="{each}"' for each in dict.fromkeys(near[:4])) + "?"
