"""What a GKE cluster costs: by Google's list of prices, or else by the kit's own dated table.

Google sells cores, memory and GPUs apart, so a machine's price is put together. That the list may not be
asked, or does not answer, keeps nobody from starting: the table then says whose figure it is.
"""

import re
from datetime import UTC, datetime

from clouds.google.machines import COMES_WITH, SYSTEM_DISK_GB, SYSTEM_MACHINE
from clouds.google.session import GcpSession, find
from clouds.google.stack import GkePlan
from clouds.price_table import HOURS_A_MONTH, Estimate, Price, price_table
from kitlib.errors import KitError

COMPUTE, KUBERNETES = "services/6F81-5844-456A", "services/CCD8-9BF1-090E"  # as Google bills them
BUCKET_GB, IMAGES_GB = 1, 5
STAYS = "it outlives the cluster, so that nobody loses what is in it"
FILES = (
    "a shared volume is a Filestore instance of at least 1 TiB: about {:.2f} dollars an hour for each, "
    "also after the expiry, until somebody deletes it"
)
BUILDS = "an image that Cloud Build builds costs half a cent a minute; 2,500 minutes a month are free"
TRAFFIC = "traffic out of Google Cloud is not in it: a few cents for the course"
SPOT = "a spot price moves, and a spot machine may be taken away at any time"
FILESTORE_GB = 1024
_CONTROL_PLANE = "Zonal Kubernetes Clusters"


def estimate(plan: GkePlan, *, hours: float) -> Estimate:
    """Estimate the price of a cluster.

    Args:
        plan: The cluster.
        hours: For which it is meant to live.
    """
    asked = _Prices(plan.session)
    table, machines = asked.table, plan.machines
    gigabytes = SYSTEM_DISK_GB + machines.nodes * machines.disk_gb
    prices = [
        asked.control_plane(),
        asked.machine(SYSTEM_MACHINE, 1),
        *pool(plan, asked=asked),
        asked.listed("persistent disk, balanced", r"^Balanced PD Capacity", count=gigabytes, monthly=True),
        table.price("public IPv4 address", count=1 + machines.nodes),
        table.price("Cloud Storage", what="bucket, a gigabyte", count=BUCKET_GB, stays=STAYS),
        table.price("Artifact Registry", what="images, a gigabyte", count=IMAGES_GB, stays=STAYS),
    ]
    about = f'cluster "{plan.tags.cluster}" in {plan.session.zone}'
    share = table.price("Filestore, basic HDD", count=FILESTORE_GB).together
    notes = (FILES.format(share), BUILDS, TRAFFIC, *([SPOT] if machines.spot else []))
    return Estimate(about, tuple(each for each in prices if each.count), hours, notes)


def pool(plan: GkePlan, *, asked: "_Prices | None" = None) -> list[Price]:
    """Price the training machines, GPUs apart where they are sold apart."""
    asked, machines = asked or _Prices(plan.session), plan.machines
    prices = [asked.machine(machines.machine_type, machines.nodes, spot=machines.spot)]
    if machines.accelerator and machines.accelerator not in COMES_WITH:
        count = machines.gpus * machines.nodes
        prices.append(asked.gpu(machines.accelerator, count, spot=machines.spot))
    return prices


class _Prices:
    """Google's list of prices, asked as long as it answers."""

    def __init__(self, session: GcpSession) -> None:
        self.session, self.table = session, price_table("google")
        self._lists: dict[str, list[dict]] = {}

    def control_plane(self) -> Price:
        """Return the price of the cluster itself."""
        figure = self._figure(KUBERNETES, rf"^{_CONTROL_PLANE}")
        return self._said("GKE control plane", figure, 1)

    def listed(self, key: str, words: str, *, count: float = 1, monthly: bool = False) -> Price:
        """Return a price by its words in the list, or by the kit's table, in which it is called ``key``."""
        figure = self._figure(COMPUTE, words)
        what = f"{key}, a gigabyte" if monthly else ""
        if figure is None:
            return self.table.price(key, what=what, count=count)
        return self._said(key, figure / HOURS_A_MONTH if monthly else figure, count, what=what)

    def machine(self, kind: str, count: int, *, spot: bool = False) -> Price:
        """Return the price of machines: of their cores and their memory."""
        what = f"machine {kind}{', spot' if spot else ''}"
        where = {"project": self.session.project, "zone": self.session.zone, "machineType": kind}
        family = kind.partition("-")[0].upper()
        begins = rf"^{'Spot Preemptible ' if spot else ''}{family} (Predefined )?Instance"
        try:
            found = find(self.session.rest, "compute", "machineTypes.get", **where)
        except KitError:
            found = None
        core = self._figure(COMPUTE, rf"{begins} Core running in") if found else None
        memory = self._figure(COMPUTE, rf"{begins} Ram running in") if found else None
        if core is None or memory is None or kind in COMES_WITH.values():
            return self.table.price(kind, what=what, count=count, spot=spot)
        figure = found["guestCpus"] * core + found["memoryMb"] / 1024 * memory
        return self._said(kind, figure, count, what=what)

    def gpu(self, kind: str, count: int, *, spot: bool = False) -> Price:
        """Return the price of GPUs that are attached to machines."""
        model = kind.removeprefix("nvidia-").replace("-", " ")
        words = rf"^Nvidia {model} GPU {'attached to Spot Preemptible VMs ' if spot else ''}running in"
        figure = self._figure(COMPUTE, words)
        what = f"GPU {kind}{', spot' if spot else ''}"
        if figure is None:
            return self.table.price(kind, what=what, count=count, spot=spot)
        return self._said(kind, figure, count, what=what)

    def _said(self, key: str, figure: float | None, count: float, *, what: str = "") -> Price:
        if figure is None:
            return self.table.price(key, what=what, count=count)
        today = datetime.now(UTC).date()
        return Price(what or key, figure, count, f"price list of {self.session.region}", today)

    def _figure(self, service: str, words: str) -> float | None:
        """Return dollars for a unit of what the list describes so in the region; None if it does not tell."""
        for each in self._list(service):
            if re.search(words, each["description"], re.I) and self._here(each):
                return _dollars(each)
        return None

    def _here(self, sku: dict) -> bool:
        regions = sku.get("serviceRegions", ())
        return self.session.region in regions or "global" in regions

    def _list(self, service: str) -> list[dict]:
        if service not in self._lists:
            try:
                found = self.session.every("cloudbilling", "services.skus.list", "skus", parent=service)
                self._lists[service] = list(found)
            except KitError:
                self._lists[service] = []
        return self._lists[service]


def _dollars(sku: dict) -> float | None:
    """Return a unit's price, past what is free."""
    for pricing in sku.get("pricingInfo", ()):
        for rate in reversed(pricing["pricingExpression"].get("tieredRates", ())):
            price = rate["unitPrice"]
            figure = int(price.get("units", 0)) + price.get("nanos", 0) / 1e9
            if figure > 0 and price.get("currencyCode", "USD") == "USD":
                return figure
    return None
