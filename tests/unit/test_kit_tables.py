from datetime import UTC, datetime

import pytest

from kitlib.display.tables import Table, age
from kitlib.k8s import quantities
from kitlib.widgets import cluster_view

from .objects import pod

NOW = datetime(2026, 1, 10, 12, 0, 0, tzinfo=UTC)


def test_a_table_is_text_html_dicts_and_a_frame():
    assert repr(Table(("node", "cpu"), [("node-0", 2), ("n", None)])) == "NODE    CPU\nnode-0  2\nn       -"
    assert repr(Table(("a",), [("two\nlines",)])) == "A\ntwo lines"
    assert "<td style='text-align:left'>&lt;b&gt;</td>" in Table(("a",), [("<b>",)])._repr_html_()
    table = Table(("a", "b"), [(1, 2)])
    assert list(table) == [{"a": 1, "b": 2}]
    assert table[0]["b"] == table.frame().b.sum() == 2


@pytest.mark.parametrize(
    ("since", "text"),
    [
        ("2026-01-10T11:59:18Z", "42s"),
        ("2026-01-10T11:55:00Z", "5m"),
        ("2026-01-10T08:00:00Z", "4h"),
        ("2026-01-01T12:00:00Z", "9d"),
        ("2026-01-10T12:00:09.5Z", "0s"),
        (None, "-"),
    ],
)
def test_an_age_is_written_as_kubectl_writes_it(since, text):
    assert age(since, NOW) == text


@pytest.mark.parametrize(
    ("quantity", "number"), [("500m", 0.5), ("2Gi", 2**31), ("1.5", 1.5), (3, 3), ("1k", 1000)]
)
def test_a_quantity_stands_for_a_number(quantity, number):
    assert quantities.parse_quantity(quantity) == number


def test_amounts_are_readable():
    amounts = [quantities.format_bytes(amount) for amount in ("5536Mi", "1023Ki", None)]
    assert [*amounts, quantities.format_cores("500m")] == ["5.41 GiB", "0.999 MiB", "-", "0.5"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_have_ended_come_below_those_that_run(phase):
    cluster_pods = [pod("a-ended", phase=phase), pod("b-waits", phase="Pending"), pod("c-runs")]
    assert [row[0] for row in cluster_view._pod_rows(cluster_pods)] == ["b-waits", "c-runs", "a-ended"]
