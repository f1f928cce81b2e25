"""What a cluster at a cloud costs: an hour, for the hours planned, and after its end.

The clouds' own price lists are asked in `aws.prices` and `google.prices`; where they cannot be, `prices.toml`
has list prices with their date. Asking for agreement is in `confirmation`. Pure, but for that file.
"""

import datetime
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kitlib.display.tables import Table
from kitlib.k8s.manifests import Object

HOURS_A_MONTH = 730  # with which both clouds turn a month's price into an hour's
UNKNOWN = "not known"
A_DAY, A_WHILE = 24.0, 0.25  # hours
AMAZON, GOOGLE = ("amazon", "EKS control plane"), ("google", "GKE control plane")
CLOUDS = {"aws": AMAZON, "eks": AMAZON, "gce": GOOGLE, "gke": GOOGLE}  # by providerID and by kit provider
INSTANCE, ACCELERATOR = "node.kubernetes.io/instance-type", "cloud.google.com/gke-accelerator"


@dataclass(frozen=True)
class Price:
    """What one kind of thing costs.

    Attributes:
        what: As the bill calls it: ``node g4dn.xlarge``, ``EKS control plane``.
        dollars_an_hour: For one of it, in US dollars; None if nobody could tell.
        count: How many: nodes, gigabytes.
        source: Who says so: ``price list``, ``spot market``, ``the kit's table of us-east-1``.
        date: Of when it is.
        stays: Why it bills on after the cluster's expiry; empty for what the expiry deletes.
    """

    what: str
    dollars_an_hour: float | None
    count: float = 1
    source: str = ""
    date: datetime.date | None = None
    stays: str = ""

    @property
    def together(self) -> float:
        """Dollars an hour for all of it; 0 if the price is not known."""
        return (self.dollars_an_hour or 0.0) * self.count


@dataclass(frozen=True)
class Estimate:
    """What something that is about to be made costs.

    Attributes:
        about: ``cluster "lab" in us-west-2``.
        prices: Of its parts.
        hours: For which it is planned.
        notes: What no figure here holds: traffic, for one.

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
        return sum(each.together for each in self.prices)

    @property
    def total(self) -> float:
        """Dollars for the hours planned."""
        return self.an_hour * self.hours

    @property
    def afterwards(self) -> float:
        """Dollars an hour that bill on after the expiry, until somebody deletes the rest."""
        return sum(each.together for each in self.prices if each.stays)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What has no price, so that the sums are too low."""
        return tuple(each.what for each in self.prices if each.dollars_an_hour is None)

    def table(self) -> Table:
        """Return a row for each part, and the sums."""
        rows = [_row(each, self.hours) for each in self.prices]
        least = "at least " if self.unknown else ""
        hours = f"{self.hours:g} hour{'' if self.hours == 1 else 's'}"
        sums = (f"{least}{_dollars(self.an_hour)}", f"{least}{_dollars(self.total)}", hours)
        rows.append(("together", "", "", *sums))
        return Table(("what", "count", "each an hour", "an hour", "planned", "source"), rows)

    def words(self) -> list[str]:
        """Notes below the table."""
        said = [f"the price of {', '.join(self.unknown)} is {UNKNOWN}"] if self.unknown else []
        if staying := [each for each in self.prices if each.stays]:
            day = _dollars(self.afterwards * 24)
            said.append(f"still billed after its expiry, {day} a day, until kit.clean_up or a delete:")
            said += [f"  {each.what}: {each.stays}" for each in staying]
        return [*said, *self.notes]

    def __repr__(self) -> str:
        return "\n".join([f"{self.about} costs, in US dollars:", repr(self.table()), *self.words()])

    def _repr_html_(self) -> str:
        from html import escape

        below = "".join(f"<br>{escape(line)}" for line in self.words())
        return f"<b>{escape(self.about)}</b> costs, in US dollars:{self.table()._repr_html_()}{below}"


@dataclass(frozen=True)
class PriceTable:
    """The kit's own table of one cloud's list prices.

    Attributes:
        cloud: ``amazon`` or ``google``.
        date: Of when it is.
        region: Whose prices they are; other regions are up to half as expensive again.
        spot_share: What a spot machine costs of a machine's price, roughly.
        an_hour: Dollars, by what it is for.
        a_gigabyte_a_month: The same for what is stored.
    """

    cloud: str
    date: datetime.date
    region: str
    spot_share: float
    an_hour: Mapping[str, float]
    a_gigabyte_a_month: Mapping[str, float]

    def price(
        self, key: str, *, what: str = "", count: float = 1, spot: bool = False, stays: str = ""
    ) -> Price:
        """Return the price of a thing that is named as in the table; without a figure if it is not there.

        Args:
            key: As in the table; what is stored is counted in gigabytes.
            what: As people shall read it; by default the key.
            count: How many, or how many gigabytes.
            spot: As a spot machine.
            stays: Why it bills on after the expiry.
        """
        figure = self.an_hour.get(key)
        if figure is None and key in self.a_gigabyte_a_month:
            figure = self.a_gigabyte_a_month[key] / HOURS_A_MONTH
        source = f"the kit's table of {self.region}, {self.date}"
        if figure is None:
            return Price(what or key, None, count, UNKNOWN, None, stays)
        if spot:
            figure, source = figure * self.spot_share, f"roughly; {source}"
        return Price(what or key, figure, count, source, self.date, stays)


@cache
def price_table(cloud: str) -> PriceTable:
    """Return the kit's table of a cloud: ``amazon`` or ``google``."""
    file = Path(__file__).with_name("prices.toml")
    return PriceTable(cloud, **tomllib.loads(file.read_text(encoding="utf-8"))[cloud])


def hours_left(until: datetime.datetime | None) -> float:
    """Return for how many hours something that is there still bills.

    Args:
        until: When the cloud deletes it. One that is over is being deleted, which takes a while; for what has
            no end, a day is counted.
    """
    if until is None:
        return A_DAY
    left = until - datetime.datetime.now(datetime.UTC)
    return max(round(left.total_seconds() / 3600, 2), A_WHILE)


def _row(price: Price, hours: float) -> tuple:
    if price.dollars_an_hour is None:
        return (price.what, f"{price.count:g}", UNKNOWN, UNKNOWN, UNKNOWN, price.source)
    sums = (_dollars(price.dollars_an_hour), _dollars(price.together), _dollars(price.together * hours))
    return (price.what, f"{price.count:g}", *sums, price.source)


def _dollars(amount: float) -> str:
    """Return an amount with as many places as it has something to say in."""
    return f"{amount:.2f}" if amount >= 0.1 or amount == 0 else f"{amount:.2g}"


def describe_price(nodes: Sequence[Object], hours: float, *, at: str = "", more: int = 0) -> str:
    """Estimate the price of a cluster's nodes and control plane, in words. Pure.

    Args:
        nodes: Of the cluster; their ``providerID`` names the cloud.
        hours: How long.
        at: The cluster's provider.
        more: How many of the nodes are still to be added.
    """
    found = next((each["spec"].get("providerID", "").partition(":")[0] for each in nodes), "")
    cloud = at if at in CLOUDS else found
    if cloud not in CLOUDS:
        return "nothing here, beyond the machines that there are"
    name, control_plane = CLOUDS[cloud]
    table, kinds = price_table(name), [*map(_machine, nodes), *filter(None, map(_accelerator, nodes))]
    prices = [table.price(each, count=kinds.count(each)) for each in dict.fromkeys(kinds)]
    found = Estimate("this cluster", (table.price(control_plane), *prices), hours)
    unknown = f"; not known: {', '.join(found.unknown)}" if found.unknown else ""
    said = f"about {found.total:.2f} dollars, {found.an_hour:.2f} an hour"
    return f"{said}{f', with {more} nodes more' if more else ''}, by the list of {table.date}{unknown}"


def _machine(node: Object) -> str:
    return (node["metadata"].get("labels") or {}).get(INSTANCE, "a machine of no known type")


def _accelerator(node: Object) -> str | None:
    return (node["metadata"].get("labels") or {}).get(ACCELERATOR)
