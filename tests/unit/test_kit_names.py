from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitlib.errors import BadInput
from kitlib.k8s import names


@pytest.mark.parametrize("name", ["a", "lab-1", "x" * 63])
def test_a_dns_label_is_a_name(name):
    assert names.validate_name(name, kind="cluster") == name


@pytest.mark.parametrize("name", ["", "Lab", "a_b", "-a", "a-", "a.b", "ä", "x" * 64, "a b", "a\n", 7, None])
def test_anything_else_is_refused_with_a_proposal(name):
    with pytest.raises(BadInput) as refused:
        names.validate_name(name, kind="cluster")
    assert refused.value.fix.startswith('name="')


@given(st.text())
def test_a_unique_name_is_a_name_whatever_it_is_made_from(stem):
    name = names.unique(stem)
    assert names.validate_name(name, kind="run", longest=names.MAX_RUN_NAME) == name


def test_labels_say_whose_a_run_is_and_when_it_may_go():
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    labels = names.labels(run="digits", workshop="Autumn School!", lifetime=timedelta(hours=2), now=now)
    assert labels["trainyard/run"] == "digits"
    assert labels["trainyard/workshop"] == "autumn-school"
    assert labels["trainyard/expires"] == "20260102T050405Z"
    assert set(labels) == {f"trainyard/{name}" for name in ("kit", "run", "workshop", "owner", "expires")}
