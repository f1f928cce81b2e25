"""What a cluster at a cloud costs, and how that is agreed to."""

import logging
import re
from datetime import UTC, date, datetime, timedelta

import pytest

from clouds import confirmation
from clouds.price_table import HOURS_A_MONTH, Estimate, Price, hours_left, price_table
from kitlib import config
from kitlib.errors import BadInput, NotConfirmed

ESTIMATE = Estimate(
    'cluster "lab" in us-west-2',
    (
        Price("EKS control plane", 0.10, source="price list", date=date(2026, 11, 1)),
        Price("node g4dn.xlarge", 0.526, 2, "price list"),
        Price("file system, a gigabyte", 0.0004, 10, "price list", stays="its files are yours"),
    ),
    hours=4,
)


@pytest.fixture(autouse=True)
def no_budget(monkeypatch):
    monkeypatch.delenv("TRAINYARD_BUDGET", raising=False)


def answers(*given):
    """Return what stands in for the keyboard, and the questions that it was asked."""
    asked, left = [], list(given)

    def ask(question: str) -> str:
        asked.append(question)
        return left.pop(0)

    return ask, asked


def nobody(question: str) -> str:
    raise EOFError


def test_an_estimate_adds_up_and_says_what_bills_on_after_the_expiry():
    assert ESTIMATE.an_hour == pytest.approx(1.156)
    assert ESTIMATE.total == pytest.approx(4.624)
    assert ESTIMATE.afterwards == pytest.approx(0.004)
    shown = repr(ESTIMATE)
    assert "4.62" in shown and "4 hours" in shown
    assert "still billed after its expiry" in shown and "its files are yours" in shown
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
    stored = table.price("EFS", what="file system", count=10, stays="its files are yours")
    assert stored.together == pytest.approx(10 * 0.30 / HOURS_A_MONTH)
    assert str(table.date) in stored.source and table.region in stored.source
    assert table.price("g4dn.xlarge", spot=True).dollars_an_hour < table.price("g4dn.xlarge").dollars_an_hour
    assert table.price("z9.huge").dollars_an_hour is None


def test_yes_is_a_yes_and_anything_else_is_a_no():
    ask, asked = answers("Yes ")
    confirmation.confirm_cost(ESTIMATE, ask=ask)
    assert "4.62" in asked[0] and "yes" in asked[0]
    for no in ("", "no", "y"):
        with pytest.raises(NotConfirmed, match="nothing was started"):
            confirmation.confirm_cost(ESTIMATE, ask=answers(no)[0])


def test_what_was_agreed_to_beforehand_is_shown_and_not_asked(caplog):
    with caplog.at_level(logging.INFO, logger="trainyard"):
        confirmation.confirm_cost(ESTIMATE, confirm=True, ask=nobody)
    assert "4.62" in caplog.text


def test_where_nobody_can_be_asked_the_error_names_the_argument():
    with pytest.raises(BadInput) as error:
        confirmation.confirm_cost(ESTIMATE, ask=nobody)
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
    confirmation.confirm_cost(ESTIMATE, confirm=True, budget=10, already=5)
    with pytest.raises(BadInput, match=r"beside 6\.00 for what is there already"):
        confirmation.confirm_cost(ESTIMATE, confirm=True, budget=10, already=6)


def test_a_budget_cannot_hold_what_has_no_price():
    with pytest.raises(BadInput, match="cannot be told"):
        confirmation.confirm_cost(
            Estimate("x", (Price("node z9.huge", None),), hours=1), confirm=True, budget=1000
        )


@pytest.mark.parametrize("budget", ["much", -1, float("nan"), float("inf"), True])
def test_a_budget_is_an_amount_of_dollars(budget):
    with pytest.raises(BadInput, match="not an amount of dollars"):
        confirmation.confirm_cost(ESTIMATE, confirm=True, budget=budget)


def test_the_page_on_prices_says_what_the_table_says():
    page = (config.ROOT / "docs" / "prices.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([\d.]+)[^|]*\|", page, re.M))
    amazon, google = price_table("amazon"), price_table("google")
    hourly = {
        "control plane, EKS or GKE": amazon.an_hour["EKS control plane"],
        "a node with 4 vCPUs and 16 GB": amazon.an_hour["m5.xlarge"],
        "a node with one T4": amazon.an_hour["g4dn.xlarge"],
        "shared storage, EFS": amazon.price("EFS").dollars_an_hour,
        "shared storage, Filestore": google.price("Filestore, basic HDD", count=1024).together,
        "a public IPv4 address": amazon.an_hour["public IPv4 address"],
    }
    for row, figure in hourly.items():
        assert float(rows[row]) == pytest.approx(figure, rel=0.03), row
    assert google.an_hour["n1-standard-4"] == pytest.approx(float(rows["a node with 4 vCPUs and 16 GB"]))
    together = google.an_hour["n1-standard-4"] + google.an_hour["nvidia-tesla-t4"]
    assert f"with one T4: {together:.2f}" in page
    assert str(amazon.date) in page and str(google.date) in page


def test_what_stands_already_cannot_be_counted_without_its_price():
    assert confirmation.committed_cost([ESTIMATE, ESTIMATE]) == pytest.approx(2 * ESTIMATE.total)
    unsure = Estimate('cluster "lab"', (Price("node z9.huge", None),), hours=1)
    with pytest.raises(BadInput, match="node z9.huge is not known"):
        confirmation.committed_cost([ESTIMATE, unsure])


def test_what_is_over_is_still_being_deleted_and_what_has_no_end_counts_for_a_day():
    now = datetime.now(UTC)
    assert hours_left(now + timedelta(hours=3)) == pytest.approx(3, abs=0.05)
    assert hours_left(now - timedelta(hours=3)) == 0.25
    assert hours_left(None) == 24
