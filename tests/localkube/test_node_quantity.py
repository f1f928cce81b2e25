"""Quantities: what Kubernetes accepts, exactly, and its canonical form back."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localkube.kubelet.quantity import milli, parse, quantity, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("100m", "0.1"),
        (".5", "0.5"),
        ("-3", "-3"),
        ("2Gi", str(2 * 2**30)),
        ("1.5Ki", "1536"),
        ("1e3", "1000"),
        ("1E", "1000000000000000000"),
        ("1Ei", str(2**60)),
        ("12e-2", "0.12"),
        ("1n", "0.000000001"),
        (4, "4"),
    ],
)
def test_a_quantity_has_an_exact_value(text, value):
    assert parse(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "one", "1K", "1 Gi", "1e", "0x10", "1.2.3", "Gi", "--1", "nan"])
def test_an_invalid_quantity_is_refused_by_name(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        parse(text)


def test_whole_units_and_millicores_round_up():
    assert whole("1500m") == 2
    assert whole("1") == 1
    assert milli("0.0001") == 1
    assert milli("250m") == 250


@pytest.mark.parametrize(
    ("value", "binary", "text"),
    [
        (Decimal("0.5"), False, "500m"),
        (2000, False, "2k"),
        (1500, False, "1500"),
        (3 * 2**30, True, "3Gi"),
        (1536, True, "1536"),
        (-(2**20), True, "-1Mi"),
    ],
)
def test_the_canonical_form_keeps_the_value_with_the_largest_suffix(value, binary, text):
    assert quantity(value, binary=binary) == text


def test_a_value_finer_than_a_billionth_cannot_be_written():
    with pytest.raises(ValueError, match="too precise"):
        quantity(Decimal("1e-10"))


@given(st.integers(min_value=-(10**24), max_value=10**24), st.booleans())
def test_a_formatted_quantity_parses_to_the_same_value(billionths, binary):
    value = Decimal(billionths).scaleb(-9)
    assert parse(quantity(value, binary=binary)) == value
