"""What a project has from the beginning: regions, zones, machine types, a network. Few of each, and dated."""

from .store import Store
from .world import Project

LINK = "https://www.googleapis.com/compute/v1/"
ZONES = {
    "us-central1": "abcf",
    "us-east1": "bcd",
    "us-west1": "abc",
    "europe-west4": "abc",
    "asia-east1": "abc",
}
MACHINES = {  # cores, memory in MiB
    "e2-medium": (2, 4096),
    "e2-standard-2": (2, 8192),
    "e2-standard-4": (4, 16384),
    "n1-standard-1": (1, 3840),
    "n1-standard-2": (2, 7680),
    "n1-standard-4": (4, 15360),
    "n1-standard-8": (8, 30720),
    "n2-standard-4": (4, 16384),
    "g2-standard-4": (4, 16384),
    "g2-standard-8": (8, 32768),
}
# Not every zone has every GPU: https://cloud.google.com/compute/docs/gpus/gpu-regions-zones
ACCELERATORS = {
    "nvidia-tesla-t4": ("us-central1-a", "us-central1-b", "us-central1-c", "us-east1-c", "us-west1-b"),
    "nvidia-l4": ("us-central1-a", "us-central1-b", "us-central1-c", "us-east1-b", "europe-west4-a"),
    "nvidia-tesla-v100": ("us-central1-a", "us-central1-f"),
}


def plant(store: Store, project: Project) -> None:
    """Put into the store what a new project has."""
    root = f"projects/{project.id}"
    for region, letters in ZONES.items():
        zones = [f"{region}-{letter}" for letter in letters]
        links = [f"{LINK}{root}/zones/{zone}" for zone in zones]
        _put(store, f"{root}/regions/{region}", "region", {"status": "UP", "zones": links})
        for zone in zones:
            where = f"{root}/zones/{zone}"
            _put(store, where, "zone", {"status": "UP", "region": f"{LINK}{root}/regions/{region}"})
            for name, (cores, memory) in MACHINES.items():
                _put(
                    store,
                    f"{where}/machineTypes/{name}",
                    "machineType",
                    {"guestCpus": cores, "memoryMb": memory},
                )
            for name, zones_with in ACCELERATORS.items():
                if zone in zones_with:
                    most = {"maximumCardsPerInstance": 4}
                    _put(store, f"{where}/acceleratorTypes/{name}", "acceleratorType", most)
        subnet = {"ipCidrRange": "10.128.0.0/20", "network": f"{LINK}{root}/global/networks/default"}
        _put(store, f"{root}/regions/{region}/subnetworks/default", "subnetwork", subnet)
    _put(store, f"{root}/global/networks/default", "network", {"autoCreateSubnetworks": True})
    thing = {
        "name": f"projects/{project.number}",
        "projectId": project.id,
        "state": "ACTIVE",
        "displayName": project.id,
    }
    store.put("cloudresourcemanager", root, thing, given=True)


def _put(store: Store, path: str, kind: str, body: dict) -> None:
    name = path.rsplit("/", 1)[1]
    words = path.split("/")
    zone = {"zone": words[3]} if words[2] == "zones" and len(words) > 4 else {}
    shown = {
        "kind": f"compute#{kind}",
        "name": name,
        "description": name,
        "selfLink": LINK + path,
        **zone,
        **body,
    }
    store.put("compute", path, shown, given=True)
