"""A new project: its APIs, who pays, and the regions, zones, machines and network that it begins with."""

from .rest import LINK, Request, Rest
from .store import Store
from .world import Project

ZONES = {"us-central1": "abcf", "us-east1": "bcd", "us-west1": "abc", "europe-west4": "abc"}
SCHEDULER = ("us-central1", "us-east1", "europe-west1")  # not every region has Cloud Scheduler
MACHINES = {  # cores
    "e2-medium": 2,
    "e2-standard-2": 2,
    "e2-standard-4": 4,
    "n1-standard-1": 1,
    "n1-standard-2": 2,
    "n1-standard-4": 4,
    "n1-standard-8": 8,
    "n2-standard-4": 4,
    "n4-standard-4": 4,
    "c4-standard-4": 4,
    "g2-standard-4": 4,
    "g2-standard-8": 8,
    "a3-highgpu-1g": 26,
    "t2a-standard-4": 4,
}
# Not every zone has every GPU: https://cloud.google.com/compute/docs/gpus/gpu-regions-zones
ACCELERATORS = {
    "nvidia-tesla-t4": ("us-central1-a", "us-central1-b", "us-central1-c", "us-east1-c", "us-west1-b"),
    "nvidia-l4": ("us-central1-a", "us-central1-b", "us-central1-c", "us-east1-b", "europe-west4-a"),
    "nvidia-h100-80gb": ("us-central1-a", "us-central1-c"),
    "nvidia-tesla-v100": ("us-central1-a", "us-central1-f"),
}


def seed(store: Store, project: Project) -> None:
    """Put into the store what a new project has."""
    root = f"projects/{project.id}"
    network = f"{root}/global/networks/default"
    _put(store, network, autoCreateSubnetworks=True)
    for region, letters in ZONES.items():
        zones = [f"{region}-{letter}" for letter in letters]
        links = [f"{LINK}{root}/zones/{zone}" for zone in zones]
        _put(store, f"{root}/regions/{region}", status="UP", zones=links)
        _put(store, f"{root}/regions/{region}/subnetworks/default", network=LINK + network)
        for zone in zones:
            where = f"{root}/zones/{zone}"
            _put(store, where, status="UP", region=f"{LINK}{root}/regions/{region}")
            for name, cores in MACHINES.items():
                machine = {"guestCpus": cores, "memoryMb": cores * 4096, "zone": zone}
                _put(store, f"{where}/machineTypes/{name}", **machine)
            for name, accelerator_zones in ACCELERATORS.items():
                if zone in accelerator_zones:
                    _put(store, f"{where}/acceleratorTypes/{name}", zone=zone, maximumCardsPerInstance=4)
    for region in SCHEDULER:
        path = f"{root}/locations/{region}"
        store.put("cloudscheduler", path, {"name": path, "locationId": region}, given=True)
    thing = {"name": f"projects/{project.number}", "projectId": project.id, "state": "ACTIVE"}
    store.put("cloudresourcemanager", root, thing, given=True)


def _put(store: Store, path: str, **body: object) -> None:
    body |= {"name": path.rpartition("/")[2], "selfLink": LINK + path}
    store.put("compute", path, body, given=True)


def get(rest: Rest, request: Request) -> dict:
    """The project."""
    project = rest.world.project(request.path.split("/")[1])
    return rest.store.get("cloudresourcemanager", f"projects/{project.id}").body


def services(rest: Rest, request: Request) -> dict:
    """The APIs that are named, enabled or not."""
    enabled, rows = rest.world.project(request.project).enabled, []
    for name in request.query["names"]:
        host = name.rpartition("/")[2]
        state = "ENABLED" if host.removesuffix(".googleapis.com") in enabled else "DISABLED"
        rows.append({"name": name, "config": {"name": host}, "state": state})
    return {"services": rows}


def billing(rest: Rest, request: Request) -> dict:
    """Who pays."""
    paid = rest.world.project(request.project).billing
    account = "billingAccounts/012345-567890-ABCDEF" if paid else ""
    return {"name": request.path, "billingAccountName": account, "billingEnabled": paid}


SPECIALS = {
    "serviceusage.services.batchGet": services,
    "cloudbilling.projects.getBillingInfo": billing,
    "cloudresourcemanager.projects.get": get,
}
