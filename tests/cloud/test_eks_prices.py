"""What an EKS cluster costs: by the price list, or by the kit's own table where nobody answers."""

from datetime import UTC, datetime
from functools import cache

import pytest

from clouds.aws.plan import SYSTEM, TRAIN, EksPlan, NodeGroupPlan
from clouds.aws.prices import estimate, price_of_nodes
from clouds.aws.session import AwsSession
from clouds.price_table import price_table
from clouds.tags import Tags


@cache
def shared(region: str) -> AwsSession:
    """Return a session that many tests use: loading boto3's models takes longer than all requests."""
    return AwsSession(region)


def plan(region: str = "us-west-2", *, instance_type: str = "g4dn.xlarge", nodes: int = 2, **more) -> EksPlan:
    groups = (
        NodeGroupPlan(SYSTEM, "t3.large", 1, least=1),
        NodeGroupPlan(TRAIN, instance_type, nodes, spot=more.pop("spot", False)),
    )
    return EksPlan(shared(region), Tags("lab", "ada", "self-paced"), groups=groups, **more)


def figures(found) -> dict[str, tuple[float | None, float]]:
    return {each.what: (each.dollars_an_hour, each.count) for each in found.prices}


def test_the_price_list_of_the_region_is_asked_and_the_sums_are_right(amazon):
    found = estimate(plan(), hours=4)
    by_hand = 0.10 + 0.0832 + 2 * 0.526 + 3 * 50 * 0.08 / 730 + 10 * 0.30 / 730 + 3 * 0.005
    assert found.an_hour == pytest.approx(by_hand)
    assert found.total == pytest.approx(4 * by_hand)
    assert not found.unknown
    assert {each.source for each in found.prices} == {"price list of us-west-2"}
    assert all(each.date == datetime.now(UTC).date() for each in found.prices)
    dearer = estimate(plan("eu-central-1"), hours=4)
    assert figures(dearer)["node g4dn.xlarge"][0] == pytest.approx(0.5786)


def test_the_file_system_and_the_nat_gateway_are_said_to_bill_on(amazon):
    private = estimate(plan(private=True), hours=4)
    staying = {each.what for each in private.prices if each.stays}
    assert staying == {"EFS, a gigabyte", "NAT gateway", "public IPv4 address"}
    assert private.afterwards == pytest.approx(0.045 + 0.005 + 10 * 0.30 / 730)
    assert figures(private)["public IPv4 address"][1] == 1
    assert "NAT gateway" not in figures(estimate(plan(), hours=4))


def test_a_spot_node_costs_what_the_market_says_in_the_dearest_zone(amazon):
    price = price_of_nodes(shared("us-west-2"), instance_type="g4dn.xlarge", nodes=3, spot=True)
    assert price.what == "node g4dn.xlarge, spot" and price.count == 3
    assert "spot market of us-west-2" in price.source
    assert 0 < price.dollars_an_hour < 0.526
    assert any("spot price moves" in each for each in estimate(plan(spot=True), hours=1).notes)


@pytest.mark.parametrize("refused", ["AccessDeniedException", "InternalErrorException"])
def test_where_the_price_list_says_no_the_dated_table_stands_in_and_it_is_asked_once(amazon, refused):
    amazon.fail("pricing:GetProducts", error=refused, times=None)
    found = estimate(plan(), hours=4)
    table = price_table("amazon")
    assert not found.unknown
    assert figures(found)["node g4dn.xlarge"] == (table.an_hour["g4dn.xlarge"], 2)
    assert {each.date for each in found.prices} == {table.date}
    assert all(str(table.date) in each.source and table.region in each.source for each in found.prices)
    asked = {each for each in amazon.actions() if each.startswith("pricing:")}
    assert asked == {"pricing:GetProducts"}


def test_a_type_that_neither_knows_has_no_price_and_the_sum_says_so(amazon):
    found = estimate(plan(instance_type="u-6tb1.metal"), hours=4)
    assert found.unknown == ("node u-6tb1.metal",)
    assert "at least" in repr(found)
