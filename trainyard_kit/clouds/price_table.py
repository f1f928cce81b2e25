"""Cost estimates from a table of the clouds' list prices.

`prices.toml` has the prices with their date and source; docs/prices.md has the same ones. Confirmation is
in `confirmation`. Pure, except for reading that file.
"""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

from kitlib.display.tables import Table
from kitlib.k8s.manifests import Object
from trainyard_kit.clouds.spec import CloudSpec, Machines, read_table

HOURS_A_MONTH = 730  # as both clouds convert monthly prices
UNKNOWN = "not known"
NO_EXPIRY_HOURS, MIN_HOURS = 24.0, 0.25
SYSTEM_DISK_GB = 50
SEPARATE_GPUS = "n1-"  # Google machines whose GPUs are priced separately
INSTANCE, ACCELERATOR = "node.kubernetes.io/instance-type", "cloud.google.com/gke-accelerator"
TRAFFIC = "excludes traffic out of the cloud and between zones: a few cents for the course"
SPOT = "spot prices vary, and the cloud may reclaim a spot machine at any time"


@dataclass(frozen=True)
class Price:
    """The price of one kind of thing.

    Attributes:
        what: ``node g4dn.xlarge``, ``EKS control plane``.
        dollars_an_hour: For one; None if it is not in the table.
        count: How many: nodes, gigabytes.
        source: The price list and its date.
        retention_reason: Why it is billed after the cluster's expiry; empty for what the expiry deletes.
        dollars_once: For one, regardless of the time: a gigabyte that is read.
    """

    what: str
    dollars_an_hour: float | None
    count: float = 1
    source: str = ""
    retention_reason: str = ""
    dollars_once: float = 0.0

    @property
    def hourly(self) -> float:
        """Dollars an hour for all of them; 0 if the price is not known."""
        return (self.dollars_an_hour or 0.0) * self.count

    @property
    def once(self) -> float:
        """Dollars for all of them that do not depend on the hours."""
        return self.dollars_once * self.count


@dataclass(frozen=True)
class Estimate:
    """An estimated cost.

    Attributes:
        about: ``cluster "lab" in us-west-2``.
        prices: Of its parts.
        hours: The planned duration.
        notes: Costs that are not included, such as traffic.

    Example:
        >>> Estimate('cluster "lab"', (Price("node m5.large", 0.096, 2),), hours=4).total
        0.768
    """

    about: str
    prices: tuple[Price, ...]
    hours: float
    notes: tuple[str, ...] = ()

    @property
    def hourly(self) -> float:
        """Dollars an hour for all parts with a known price."""
        return sum(price.hourly for price in self.prices)

    @property
    def once(self) -> float:
        """Dollars for what is billed by usage."""
        return sum(price.once for price in self.prices)

    @property
    def total(self) -> float:
        """Dollars for the planned hours, with what is billed by usage."""
        return self.hourly * self.hours + self.once

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parts without a known price, which the sums leave out."""
        return tuple(price.what for price in self.prices if price.dollars_an_hour is None)

    def table(self) -> Table:
        least = "at least " if self.unknown else ""
        rows = []
        for price in self.prices:
            figures = [UNKNOWN] * 3
            if price.dollars_once:
                figures = [f"{_dollars(price.dollars_once)} once", "", _dollars(price.once)]
            elif price.dollars_an_hour is not None:
                known = (price.dollars_an_hour, price.hourly, price.hourly * self.hours)
                figures = list(map(_dollars, known))
            rows.append((price.what, f"{price.count:g}", *figures))
        sums = (f"{least}{_dollars(self.hourly)}", f"{least}{_dollars(self.total)}")
        hours = f"in {self.hours:g} hour{'' if self.hours == 1 else 's'}"
        return Table(("item", "count", "each an hour", "an hour", hours), [*rows, ("total", "", "", *sums)])

    def lines(self) -> list[str]:
        notes = [f"the price of {', '.join(self.unknown)} is {UNKNOWN}"] if self.unknown else []
        notes += dict.fromkeys(price.source for price in self.prices if price.source)
        if retained := [price for price in self.prices if price.retention_reason]:
            day = _dollars(sum(price.hourly for price in retained) * 24)
            notes.append(f"still billed after its expiry, {day} a day, until kit.clean_up or a delete:")
            notes += [f"  {price.what}: {price.retention_reason}" for price in retained]
        return [*notes, *self.notes]

    def __repr__(self) -> str:
        return "\n".join([f"{self.about} costs, in US dollars:", repr(self.table()), *self.lines()])

    def _repr_html_(self) -> str:
        notes = "".join(f"<br>{escape(line)}" for line in self.lines())
        return f"<b>{escape(self.about)}</b> costs, in US dollars:{self.table()._repr_html_()}{notes}"


@dataclass(frozen=True)
class PriceTable:
    """One cloud's list prices of one region at one date; other regions cost up to 50 % more.

    Attributes:
        of: The kit's provider, and the first word of its nodes' ``providerID``.
        url: The cloud's page of prices.
        spot_share: The price of a spot machine as a share of the list price, roughly.
        hourly: Dollars an hour by item.
        gigabyte_month: Dollars a month for each gigabyte stored, by item.
        gigabyte: Dollars for each gigabyte read or written, by item.
        cluster: The items and quantities of a cluster.
        notes: Possible further costs, each with its item.
    """

    of: Sequence[str]
    date: datetime.date
    region: str
    url: str
    spot_share: float
    hourly: Mapping[str, float]
    gigabyte_month: Mapping[str, float]
    gigabyte: Mapping[str, float]
    cluster: Mapping[str, Any]
    notes: Sequence[Mapping[str, Any]]

    def price(
        self, key: str, *, what: str = "", count: float = 1, spot: bool = False, retention_reason: str = ""
    ) -> Price:
        """Look up a price; it is unknown if the table has none. ``count`` may be gigabytes."""
        dollars = self.hourly.get(key)
        source = f"list prices of {self.region} as of {self.date}, without discounts and taxes: {self.url}"
        if key in self.gigabyte:
            return Price(what or key, 0.0, count, source, retention_reason, self.gigabyte[key])
        if key in self.gigabyte_month:
            dollars = self.gigabyte_month[key] / HOURS_A_MONTH
        if dollars is None:
            return Price(what or key, None, count, retention_reason=retention_reason)
        return Price(what or key, dollars * (self.spot_share if spot else 1), count, source, retention_reason)


@cache
def price_table(cloud: str) -> PriceTable:
    """Read the table of a cloud: ``amazon`` or ``google``."""
    return PriceTable(**read_table("prices")[cloud])


def machine_prices(cloud: str, machines: Machines) -> tuple[Price, ...]:
    """Price training nodes without disks; of the types of a spot group the most expensive."""
    table, spot = price_table(cloud), ", spot" if machines.spot else ""
    types = (machines.type, *machines.alternative_types)
    kind = max(types, key=lambda type_: table.hourly.get(type_, math.inf))
    if machines.block:
        return (Price(f"node {kind}, of your capacity block", 0.0, machines.count),)
    prices = [table.price(kind, what=f"node {kind}{spot}", count=machines.count, spot=machines.spot)]
    if machines.accelerator and machines.type.startswith(SEPARATE_GPUS):
        name, count = machines.accelerator, machines.gpus * machines.count
        prices.append(table.price(name, what=f"GPU {name}{spot}", count=count, spot=machines.spot))
    return tuple(prices)


def cluster_prices(
    cloud: str, spec: CloudSpec, *, system: str, retention_reason: str = ""
) -> tuple[Price, ...]:
    """Price a cluster: control plane, nodes with disks and addresses, NAT gateway, the course's storage."""
    table, machines = price_table(cloud), spec.machines or Machines("", 0)
    nodes, parts = 1 + machines.count, table.cluster
    gigabytes = {**parts["stored"], **parts["transferred"]}
    counts = {key: count * machines.count for key, count in parts["for_each_node"].items()}
    counts["public IPv4 address"] = 1 if spec.private else nodes
    counts |= {"NAT gateway": min(nodes, parts["nat_gateways"])} if spec.private else {}
    disks = SYSTEM_DISK_GB + machines.count * machines.disk_gb
    return (
        table.price(parts["control_plane"]),
        table.price(system, what=f"node {system}, of the system"),
        *(machine_prices(cloud, machines) if machines.count else ()),
        table.price(parts["disk"], what="disks, a gigabyte", count=disks),
        *(table.price(key, count=count) for key, count in counts.items()),
        *(
            table.price(key, what=f"{key}, a gigabyte", count=count, retention_reason=retention_reason)
            for key, count in gigabytes.items()
        ),
    )


def cost_notes(cloud: str, spec: CloudSpec) -> tuple[str, ...]:
    """List costs that `cluster_prices` does not include."""
    table, notes = price_table(cloud), [TRAFFIC]
    for note in table.notes:
        price = table.price(note["price"], count=note["count"])
        dollars = {"once": price.once, "hour": price.hourly, "month": price.hourly * HOURS_A_MONTH}
        notes.append(note["text"].format_map(dollars))
    return (*notes, SPOT) if spec.machines and spec.machines.spot else tuple(notes)


def idle_note(prices: Sequence[Price], least: int) -> str:
    """Describe the cost of an idle cluster: both clouds' autoscalers remove nodes after ten minutes."""
    idle = sum(price.hourly for price in prices)
    return f"after ten idle minutes {least} training nodes remain: {_dollars(idle)} an hour"


def rate(cloud: str, key: str) -> str:
    """Format a price of the table: ``0.10 $ an hour``, ``0.30 $ a GB and month``."""
    table = price_table(cloud)
    stored = key in table.gigabyte_month
    dollars = table.gigabyte_month[key] if stored else table.hourly[key]
    return f"{dollars:.4f}".rstrip("0").ljust(4, "0") + (" $ a GB and month" if stored else " $ an hour")


def hours_left(expiry: datetime.datetime | None) -> float:
    """Hours until the expiry, at least `MIN_HOURS`; `NO_EXPIRY_HOURS` without one."""
    if expiry is None:
        return NO_EXPIRY_HOURS
    left = expiry - datetime.datetime.now(datetime.UTC)
    return max(round(left.total_seconds() / 3600, 2), MIN_HOURS)


def _dollars(amount: float) -> str:
    decimals = 2 if amount >= 0.1 or amount == 0 else 3 if amount >= 0.01 else 5
    return f"{amount:.{decimals}f}"


def describe_price(nodes: Sequence[Object], hours: float, *, at: str = "", more: int = 0) -> str:
    """Describe what the control plane and these nodes cost, ``more`` of which do not exist yet."""
    provider = next((node["spec"].get("providerID", "").partition(":")[0] for node in nodes), "")
    names = {at, provider}
    cloud = next((cloud for cloud, table in read_table("prices").items() if names & {*table["of"]}), None)
    if cloud is None:
        return "nothing beyond the existing machines"
    table, machines = price_table(cloud), [_machine(node) for node in nodes]
    prices = [price for machine in machines for price in machine_prices(cloud, machine)]
    estimate = Estimate("this cluster", (table.price(table.cluster["control_plane"]), *prices), hours)
    unknown = f"; not known: {', '.join(dict.fromkeys(estimate.unknown))}" if estimate.unknown else ""
    sentence = f"about {estimate.total:.2f} dollars, {estimate.hourly:.2f} an hour"
    return f"{sentence}{f', with {more} more nodes' if more else ''}, at list prices of {table.date}{unknown}"


def _machine(node: Object) -> Machines:
    labels, capacity = node["metadata"].get("labels") or {}, (node.get("status") or {}).get("capacity") or {}
    kind, gpus = labels.get(INSTANCE, "of no known type"), int(capacity.get("nvidia.com/gpu", 1))
    return Machines(kind, 1, gpus, labels.get(ACCELERATOR, ""))
