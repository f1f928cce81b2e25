"""The kit's table of the clouds' list prices, and what a cluster costs by it.

`prices.toml` has the figures with their date and source; docs/prices.md has the same ones. Asking for
agreement is in `confirmation`. Pure, but for that file.
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

HOURS_A_MONTH = 730  # by which both clouds divide a month's price
UNKNOWN = "not known"
A_DAY, A_WHILE = 24.0, 0.25  # hours
CLOUDS = {
    "aws": "amazon",
    "eks": "amazon",
    "gce": "google",
    "gke": "google",
}  # by providerID too
SYSTEM_DISK_GB = 50
SOLD_APART = "n1-"  # machines of Google whose GPUs have a price of their own; the others come with them
INSTANCE, ACCELERATOR = "node.kubernetes.io/instance-type", "cloud.google.com/gke-accelerator"
TRAFFIC = "traffic out of the cloud and between zones is not in it: a few cents for the course"
SPOT = "a spot price moves, and a spot machine may be taken away at any time"


@dataclass(frozen=True)
class Price:
    """The price of one kind of thing.

    Attributes:
        what: ``node g4dn.xlarge``, ``EKS control plane``.
        dollars_an_hour: For one of it; None if it is not in the table.
        count: How many: nodes, gigabytes.
        source: Whose figure it is, and of when.
        retention_reason: Why it is billed after the cluster's expiry; empty for what the expiry deletes.
        dollars_once: For one of it, however long it lasts: a gigabyte that is read.
    """

    what: str
    dollars_an_hour: float | None
    count: float = 1
    source: str = ""
    retention_reason: str = ""
    dollars_once: float = 0.0

    @property
    def together(self) -> float:
        """Dollars an hour for all of it; 0 if the price is not known."""
        return (self.dollars_an_hour or 0.0) * self.count

    @property
    def once(self) -> float:
        """Dollars for all of it that do not depend on the hours."""
        return self.dollars_once * self.count


@dataclass(frozen=True)
class Estimate:
    """The cost of something that is about to be started.

    Attributes:
        about: ``cluster "lab" in us-west-2``.
        prices: Of its parts.
        hours: For which it is planned.
        notes: What no figure here holds, such as traffic.

    Example:
        >>> Estimate('cluster "lab"', (Price("node m5.large", 0.096, 2),), hours=4).total
        0.768
    """

    about: str
    prices: tuple[Price, ...]
    hours: float
    notes: tuple[str, ...] = ()

    @property
    def an_hour(self) -> float:
        """Dollars an hour, of what has a price."""
        return sum(price.together for price in self.prices)

    @property
    def once(self) -> float:
        """Dollars for what is billed by use."""
        return sum(price.once for price in self.prices)

    @property
    def total(self) -> float:
        """Dollars for the hours planned, with what is billed by use."""
        return self.an_hour * self.hours + self.once

    @property
    def unknown(self) -> tuple[str, ...]:
        """What has no price, so that the sums are too low."""
        return tuple(price.what for price in self.prices if price.dollars_an_hour is None)

    def table(self) -> Table:
        least = "at least " if self.unknown else ""
        rows = []
        for price in self.prices:
            figures = [UNKNOWN] * 3
            if price.dollars_once:
                figures = [f"{_dollars(price.dollars_once)} once", "", _dollars(price.once)]
            elif price.dollars_an_hour is not None:
                known = (price.dollars_an_hour, price.together, price.together * self.hours)
                figures = list(map(_dollars, known))
            rows.append((price.what, f"{price.count:g}", *figures))
        sums = (f"{least}{_dollars(self.an_hour)}", f"{least}{_dollars(self.total)}")
        hours = f"in {self.hours:g} hour{'' if self.hours == 1 else 's'}"
        return Table(
            ("what", "count", "each an hour", "an hour", hours), [*rows, ("together", "", "", *sums)]
        )

    def lines(self) -> list[str]:
        notes = [f"the price of {', '.join(self.unknown)} is {UNKNOWN}"] if self.unknown else []
        notes += dict.fromkeys(price.source for price in self.prices if price.source)
        if staying := [price for price in self.prices if price.retention_reason]:
            day = _dollars(sum(price.together for price in staying) * 24)
            notes.append(f"still billed after its expiry, {day} a day, until kit.clean_up or a delete:")
            notes += [f"  {price.what}: {price.retention_reason}" for price in staying]
        return [*notes, *self.notes]

    def __repr__(self) -> str:
        return "\n".join([f"{self.about} costs, in US dollars:", repr(self.table()), *self.lines()])

    def _repr_html_(self) -> str:
        below = "".join(f"<br>{escape(line)}" for line in self.lines())
        return f"<b>{escape(self.about)}</b> costs, in US dollars:{self.table()._repr_html_()}{below}"


@dataclass(frozen=True)
class PriceTable:
    """One cloud's list prices, as of a date in one region; others are up to half as expensive again.

    Attributes:
        url: The cloud's own page of prices.
        spot_share: The price of a spot machine as a share of the list price, roughly.
        an_hour: Dollars, by what it is for.
        a_gigabyte_a_month: The same for what is stored.
        a_gigabyte: The same for what is read or written.
        cluster: What a cluster has of these.
        notes: What can cost more, with a figure of the table.
    """

    date: datetime.date
    region: str
    url: str
    spot_share: float
    an_hour: Mapping[str, float]
    a_gigabyte_a_month: Mapping[str, float]
    a_gigabyte: Mapping[str, float]
    cluster: Mapping[str, Any]
    notes: Sequence[Mapping[str, Any]]

    def price(
        self, key: str, *, what: str = "", count: float = 1, spot: bool = False, retention_reason: str = ""
    ) -> Price:
        """Look up a price, without a figure if the table has none; ``count`` may be gigabytes."""
        figure = self.an_hour.get(key)
        source = f"list prices of {self.region} as of {self.date}, without discounts and taxes: {self.url}"
        if key in self.a_gigabyte:
            return Price(what or key, 0.0, count, source, retention_reason, self.a_gigabyte[key])
        if key in self.a_gigabyte_a_month:
            figure = self.a_gigabyte_a_month[key] / HOURS_A_MONTH
        if figure is None:
            return Price(what or key, None, count, retention_reason=retention_reason)
        return Price(what or key, figure * (self.spot_share if spot else 1), count, source, retention_reason)


@cache
def price_table(cloud: str) -> PriceTable:
    """Read the table of a cloud: ``amazon`` or ``google``."""
    return PriceTable(**read_table("prices")[cloud])


def machine_prices(cloud: str, machines: Machines) -> tuple[Price, ...]:
    """Price training nodes without their disks; of several types that a spot group may take, the dearest."""
    table, spot = price_table(cloud), ", spot" if machines.spot else ""
    kind = max(
        (machines.type, *machines.others), key=lambda kind_name: table.an_hour.get(kind_name, math.inf)
    )
    if machines.block:
        return (Price(f"node {kind}, of your capacity block", 0.0, machines.count),)
    prices = [table.price(kind, what=f"node {kind}{spot}", count=machines.count, spot=machines.spot)]
    if machines.accelerator and machines.type.startswith(SOLD_APART):
        name, count = machines.accelerator, machines.gpus * machines.count
        prices.append(table.price(name, what=f"GPU {name}{spot}", count=count, spot=machines.spot))
    return tuple(prices)


def cluster_prices(
    cloud: str, spec: CloudSpec, *, system: str, retention_reason: str = ""
) -> tuple[Price, ...]:
    """Price a cluster: control plane, nodes with disks and addresses, NAT gateway, storage of the course."""
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
    """Name the costs that `cluster_prices` does not have."""
    table, notes = price_table(cloud), [TRAFFIC]
    for note in table.notes:
        price = table.price(note["price"], count=note["count"])
        dollars = {"once": price.once, "hour": price.together, "month": price.together * HOURS_A_MONTH}
        notes.append(note["text"].format_map(dollars))
    return (*notes, SPOT) if spec.machines and spec.machines.spot else tuple(notes)


def idle_note(prices: Sequence[Price], least: int) -> str:
    """Say what a cluster costs while it is idle: both clouds' autoscalers remove nodes after ten minutes."""
    idle = sum(price.together for price in prices)
    return f"while nothing has run for ten minutes, {least} training nodes are kept: {_dollars(idle)} an hour"


def rate(cloud: str, key: str) -> str:
    """A price of the table in words: ``0.10 $ an hour``, ``0.30 $ a GB and month``."""
    table = price_table(cloud)
    stored = key in table.a_gigabyte_a_month
    figure = table.a_gigabyte_a_month[key] if stored else table.an_hour[key]
    return f"{figure:.4f}".rstrip("0").ljust(4, "0") + (" $ a GB and month" if stored else " $ an hour")


def hours_left(until: datetime.datetime | None) -> float:
    """Hours for which something that exists is still billed: a while after its end, a day if it has none."""
    if until is None:
        return A_DAY
    left = until - datetime.datetime.now(datetime.UTC)
    return max(round(left.total_seconds() / 3600, 2), A_WHILE)


def _dollars(amount: float) -> str:
    places = 2 if amount >= 0.1 or amount == 0 else 3 if amount >= 0.01 else 5
    return f"{amount:.{places}f}"


def describe_price(nodes: Sequence[Object], hours: float, *, at: str = "", more: int = 0) -> str:
    """Estimate the price of nodes, of which so many more are to be added, and the control plane, in words."""
    provider = next((node["spec"].get("providerID", "").partition(":")[0] for node in nodes), "")
    cloud = CLOUDS.get(at) or CLOUDS.get(provider)
    if cloud is None:
        return "nothing here, beyond the machines that there are"
    table, machines = price_table(cloud), [_machine(node) for node in nodes]
    prices = [price for machine in machines for price in machine_prices(cloud, machine)]
    total = Estimate("this cluster", (table.price(table.cluster["control_plane"]), *prices), hours)
    unknown = f"; not known: {', '.join(dict.fromkeys(total.unknown))}" if total.unknown else ""
    sentence = f"about {total.total:.2f} dollars, {total.an_hour:.2f} an hour"
    return f"{sentence}{f', with {more} nodes more' if more else ''}, by the list of {table.date}{unknown}"


def _machine(node: Object) -> Machines:
    labels, capacity = node["metadata"].get("labels") or {}, (node.get("status") or {}).get("capacity") or {}
    kind, gpus = labels.get(INSTANCE, "of no known type"), int(capacity.get("nvidia.com/gpu", 1))
    return Machines(kind, 1, gpus, labels.get(ACCELERATOR, ""))
