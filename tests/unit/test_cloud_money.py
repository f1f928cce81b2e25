"""What a cluster at a cloud costs, and how that is agreed to."""

import io
import logging
import re
from datetime import UTC, date, datetime, timedelta

import pytest

from kitlib import config
from kitlib.errors import BadInput, NotConfirmed
from trainyard_kit.clouds import confirmation
from trainyard_kit.clouds.price_table import (
    HOURS_A_MONTH,
    Estimate,
    Price,
    cluster_prices,
    cost_notes,
    hours_left,
    machine_prices,
    price_table,
)
from trainyard_kit.clouds.spec import CloudSpec, Machines
from trainyard_kit.clouds.tags import Tags

ESTIMATE = Estimate(
    'cluster "lab" in us-west-2',
    (
        Price("EKS control plane", 0.10, source="price list"),
        Price("node g4dn.xlarge", 0.526, 2, "price list"),
        Price("file system, a gigabyte", 0.0004, 10, "price list", retention_reason="its files are yours"),
    ),
    hours=4,
)


@pytest.fixture(autouse=True)
def no_budget(monkeypatch):
    monkeypatch.delenv("TRAINYARD_BUDGET", raising=False)


@pytest.fixture
def keyboard(monkeypatch):
    """Return a function that sets what is typed; None stands for no terminal."""

    def type_(reply: str | None) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("" if reply is None else f"{reply}\n"))

    return type_


def test_an_estimate_adds_up_and_says_what_bills_on_after_the_expiry():
    assert ESTIMATE.hourly == pytest.approx(1.156)
    assert ESTIMATE.total == pytest.approx(4.624)
    shown = repr(ESTIMATE)
    assert "4.62" in shown and "IN 4 HOURS" in shown
    assert "still billed after its expiry, 0.096 a day" in shown and "its files are yours" in shown
    assert "<table>" in ESTIMATE._repr_html_() and "its files are yours" in ESTIMATE._repr_html_()


def test_a_price_that_nobody_knows_makes_the_sum_a_lower_bound():
    unsure = Estimate("x", (*ESTIMATE.prices, Price("node z9.huge", None, 2)), hours=4)
    assert unsure.unknown == ("node z9.huge",)
    assert "at least 4.62" in repr(unsure) and "the price of node z9.huge is not known" in repr(unsure)


def test_names_in_an_estimate_cannot_bring_markup_into_a_notebook():
    assert "<script>" not in Estimate("<script>", (), hours=1, notes=("<script>",))._repr_html_()


def test_the_kits_table_has_a_date_and_prices_what_is_stored_by_the_hour():
    table = price_table("amazon")
    assert isinstance(table.date, date)
    stored = table.price("EFS", what="file system", count=10, retention_reason="its files are yours")
    assert stored.hourly == pytest.approx(10 * 0.30 / HOURS_A_MONTH)
    assert str(table.date) in stored.source and table.region in stored.source
    assert table.price("g4dn.xlarge", spot=True).dollars_an_hour < table.price("g4dn.xlarge").dollars_an_hour
    assert table.price("z9.huge").dollars_an_hour is None


def test_yes_is_a_yes_and_anything_else_is_a_no(keyboard, capsys):
    keyboard("Yes ")
    confirmation.confirm_cost(ESTIMATE)
    question = capsys.readouterr().out
    assert "4.62" in question and "yes" in question
    for reply in ("", "no", "y"):
        keyboard(reply)
        with pytest.raises(NotConfirmed, match="nothing was started"):
            confirmation.confirm_cost(ESTIMATE)


def test_a_cost_confirmed_beforehand_is_shown_and_needs_no_terminal(keyboard, caplog):
    keyboard(None)
    with caplog.at_level(logging.INFO, logger="trainyard"):
        confirmation.confirm_cost(ESTIMATE, confirm=True)
    assert "4.62" in caplog.text
    with pytest.raises(BadInput) as error:
        confirmation.confirm_cost(ESTIMATE)
    assert "confirm=True" in error.value.fix


def test_a_budget_refuses_even_what_was_agreed_to(monkeypatch):
    with pytest.raises(BadInput, match=r"4\.62 dollars in 4 hours, which is above the budget") as error:
        confirmation.confirm_cost(ESTIMATE, confirm=True, budget=3)
    assert "hours=2.5" in error.value.fix
    monkeypatch.setenv("TRAINYARD_BUDGET", "4")
    with pytest.raises(BadInput, match="above the budget") as error:
        confirmation.confirm_cost(ESTIMATE, confirm=True)
    assert "TRAINYARD_BUDGET=4" in error.value.about
    confirmation.confirm_cost(ESTIMATE, confirm=True, budget=5)


def test_a_budget_counts_what_is_there_already():
    confirmation.confirm_cost(ESTIMATE, confirm=True, budget=10, committed=5)
    with pytest.raises(BadInput, match=r"on top of 6\.00 for existing clusters"):
        confirmation.confirm_cost(ESTIMATE, confirm=True, budget=10, committed=6)


def test_a_budget_cannot_hold_what_has_no_price():
    with pytest.raises(BadInput, match="the budget cannot be checked"):
        confirmation.confirm_cost(
            Estimate("x", (Price("node z9.huge", None),), hours=1), confirm=True, budget=1000
        )


@pytest.mark.parametrize("budget", ["much", -1, float("nan"), float("inf"), True])
def test_a_budget_is_an_amount_of_dollars(budget):
    with pytest.raises(BadInput, match="not an amount of dollars"):
        confirmation.confirm_cost(ESTIMATE, confirm=True, budget=budget)


def test_the_page_on_prices_says_what_the_table_says():
    text = (config.ROOT / "docs" / "prices.md").read_text(encoding="utf-8")
    page = text.partition("## The whole course")[0]
    amazon, google = price_table("amazon"), price_table("google")
    machines = {name: float(figure) for name, figure in re.findall(r"`([\w.-]+)` ([\d.]+\d)", page)}
    figures_by_name = {name: figure for price in (amazon, google) for name, figure in price.hourly.items()}
    assert machines == pytest.approx(
        {name: figure for name, figure in figures_by_name.items() if " " not in name}, rel=1e-3
    )
    rows = re.findall(r"^\| ([^|]+?) \| ([\d.]+)[^|]*\| ([\d.]+) \|", page, re.M)
    figures = {what: (float(first), float(second)) for what, first, second in rows}
    assert figures.pop("control plane") == (
        amazon.hourly["EKS control plane"],
        google.hourly["GKE control plane"],
    )
    disks = (amazon.price("EBS gp3"), google.price("persistent disk, balanced"))
    assert figures.pop("GB of disk") == pytest.approx([disk.dollars_an_hour for disk in disks], rel=0.03)
    shared = (amazon.price("EFS"), google.price("Filestore, basic HDD", count=100))
    assert figures.pop("shared storage") == pytest.approx([price.hourly for price in shared], rel=0.03)
    assert figures.pop("each GB read from it") == (amazon.gigabyte["EFS reading"], 0)
    assert figures.pop("each GB written to it") == (amazon.gigabyte["EFS writing"], 0)
    assert figures == {what: (amazon.hourly[what], google.hourly[what]) for what in figures}
    assert len(figures) == 3
    assert str(amazon.date) in page and str(google.date) in page
    assert amazon.url in page and google.url in page


@pytest.mark.parametrize("cloud", ["amazon", "google"])
def test_the_table_of_prices_is_not_older_than_a_year(cloud):
    table = price_table(cloud)
    what_to_do = f"open {table.url}, correct prices.toml and docs/prices.md, and set today's date"
    assert date.today() - table.date < timedelta(days=365), what_to_do


def spec(*, private=False, **machines):
    return CloudSpec(Tags("lab", "ada", "course"), Machines(**machines) if machines else None, private)


def counts(prices):
    return {price.what: price.count for price in prices}


def test_a_cluster_is_priced_with_its_disks_its_addresses_and_what_the_course_stores():
    prices = cluster_prices("amazon", spec(type="g4dn.xlarge", count=2, gpus=1), system="t3.large")
    by_hand = 0.10 + 0.0832 + 2 * 0.526 + (250 * 0.08 + 2 * 475 * 0.04) / 730 + 3 * 0.005
    stored = (10 * 0.30 + 5 * 0.10) / 730
    assert Estimate("lab", prices, hours=1).hourly == pytest.approx(by_hand + stored)
    assert not any(item.retention_reason for item in prices)


def test_the_throughput_that_is_paid_for_is_that_of_the_nodes_disks():
    nodes = (config.ROOT / "trainyard_kit" / "clouds" / "eks" / "nodes.yaml").read_text(encoding="utf-8")
    more = price_table("amazon").cluster["for_each_node"]["EBS gp3 throughput"]
    assert f"Throughput: !If [System, 125, {125 + more}]" in nodes


def test_private_nodes_have_one_address_and_a_gateway_instead_of_one_each():
    machines = {"type": "m5.xlarge", "count": 4}
    public = counts(cluster_prices("amazon", spec(**machines), system="t3.large"))
    private = counts(cluster_prices("amazon", spec(**machines, private=True), system="t3.large"))
    assert (public["public IPv4 address"], private["public IPv4 address"]) == (5, 1)
    assert "NAT gateway" not in public and private["NAT gateway"] == 1
    google = counts(cluster_prices("google", spec(**machines, private=True), system="e2-standard-4"))
    assert google["NAT gateway"] == 5


def test_a_cluster_without_training_nodes_costs_its_control_plane_and_system_node():
    prices = counts(cluster_prices("google", spec(), system="e2-standard-4"))
    assert prices["GKE control plane"] == prices["node e2-standard-4, of the system"] == 1
    assert prices["public IPv4 address"] == 1 and prices["disks, a gigabyte"] == 50


def test_a_gpu_is_priced_apart_only_beside_machines_that_do_not_come_with_it():
    beside = machine_prices("google", Machines("n1-standard-4", 2, 2, "nvidia-tesla-t4"))
    assert counts(beside) == {"node n1-standard-4": 2, "GPU nvidia-tesla-t4": 4}
    within = machine_prices("google", Machines("g2-standard-8", 2, 1, "nvidia-l4"))
    assert counts(within) == {"node g2-standard-8": 2}
    assert machine_prices("google", Machines("n1-standard-4", 1, 1, "nvidia-tesla-p100"))[1].hourly == 0


def test_spot_machines_cost_a_share_and_of_several_types_the_dearest_counts():
    (price,) = machine_prices(
        "amazon", Machines("g4dn.xlarge", 3, 1, spot=True, alternative_types=("g5.xlarge",))
    )
    assert price.what == "node g5.xlarge, spot"
    assert price.hourly == pytest.approx(3 * 1.006 * 0.4)
    (unsure,) = machine_prices(
        "amazon", Machines("g4dn.xlarge", 3, 1, spot=True, alternative_types=("z9.huge",))
    )
    assert unsure.dollars_an_hour is None
    assert any(
        "spot prices vary" in note for note in cost_notes("amazon", spec(type="a", count=1, spot=True))
    )


def test_only_googles_shared_volume_has_a_price_of_its_own_in_the_notes():
    assert any("100 GiB: about 0.022" in note for note in cost_notes("google", spec()))
    assert not any("Filestore" in note for note in cost_notes("amazon", spec()))


def test_reading_and_writing_a_volume_at_aws_is_in_the_sum_and_in_the_budget():
    prices = cluster_prices("amazon", spec(), system="t3.large")
    one_hour, two_hours = (Estimate("lab", prices, hours=hours) for hours in (1, 2))
    assert one_hour.total - one_hour.hourly == pytest.approx(30 * 0.03 + 5 * 0.06)
    assert two_hours.total - one_hour.total == pytest.approx(one_hour.hourly)
    assert "0.030 once" in " ".join(repr(one_hour).split())
    with pytest.raises(BadInput, match="above the budget"):
        confirmation.confirm_cost(one_hour, confirm=True, budget=one_hour.hourly + 1)
    assert any(
        "ten epochs over 150 GB of your own cost 45 dollars" in note for note in cost_notes("amazon", spec())
    )


def test_the_committed_cost_needs_all_prices():
    assert confirmation.committed_cost([ESTIMATE, ESTIMATE]) == pytest.approx(2 * ESTIMATE.total)
    unsure = Estimate('cluster "lab"', (Price("node z9.huge", None),), hours=1)
    with pytest.raises(BadInput, match="node z9.huge is not known"):
        confirmation.committed_cost([ESTIMATE, unsure])


def test_an_expired_cluster_counts_15_minutes_and_an_endless_one_a_day():
    now = datetime.now(UTC)
    assert hours_left(now + timedelta(hours=3)) == pytest.approx(3, abs=0.05)
    assert hours_left(now - timedelta(hours=3)) == 0.25
    assert hours_left(None) == 24
