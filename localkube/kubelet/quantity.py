"""Kubernetes quantities (``100m``, ``2Gi``, ``1e3``) as exact numbers, and back.

Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

import math
import re
from decimal import Context, Decimal

_EXACT = Context(prec=100)
MAX_DIGITS, MAX_POWER = 100, 100  # limits the work that a text can cause
_FORM = re.compile(r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse(text: str | int | float) -> Decimal:
    """Parse a quantity exactly; numbers are accepted as well.

    Raises:
        ValueError: It is not a quantity; the message shows it.

    Example:
        >>> parse("100m"), parse("2Ki"), parse("1e3")
        (Decimal('0.100'), Decimal('2048'), Decimal('1E+3'))
    """
    match = _FORM.fullmatch(str(text).strip()[: MAX_DIGITS + 1])
    if match is None or len(match[0]) > MAX_DIGITS:
        raise ValueError(f"{str(text)[:MAX_DIGITS]!r} is not a quantity such as 500m, 2 or 1Gi")
    number, suffix = Decimal(match["number"]), match["suffix"] or ""
    if suffix in _BINARY:
        return _EXACT.multiply(number, Decimal(2 ** _BINARY[suffix]))
    power = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    if abs(power) > MAX_POWER:
        raise ValueError(f"{text!r} is out of a quantity's range")
    return _EXACT.scaleb(number, power)


def whole(text: str | int | float) -> int:
    """Parse a quantity and round it up: bytes of memory, whole CPUs.

    Example:
        >>> whole("1500m"), whole("64Mi")
        (2, 67108864)
    """
    return math.ceil(parse(text))


def milli(text: str | int | float) -> int:
    """Parse a quantity into thousandths, rounded up: millicores.

    Example:
        >>> milli("0.1"), milli("2")
        (100, 2000)
    """
    return math.ceil(_EXACT.scaleb(parse(text), 3))


def quantity(value: Decimal | int, *, binary: bool = False) -> str:
    """Format a value canonically: an integer with the largest suffix that keeps it exact.

    Args:
        binary: Use ``Ki``, ``Mi``, … as for memory; a value that is not a whole number is written decimally.

    Example:
        >>> quantity(Decimal("0.5")), quantity(3 * 2**30, binary=True), quantity(2000)
        ('500m', '3Gi', '2k')
    """
    number = Decimal(value)
    if number == 0:
        return "0"
    if binary and number == number.to_integral_value():
        return _binary(int(number))
    for suffix, power in sorted(_DECIMAL.items(), key=lambda item: -item[1]):
        scaled = _EXACT.scaleb(number, -power)
        if scaled == scaled.to_integral_value(context=_EXACT):
            return f"{int(scaled)}{suffix}"
    raise ValueError(f"{value} is too precise for a quantity")


def _binary(number: int) -> str:
    for suffix, power in sorted(_BINARY.items(), key=lambda item: -item[1]):
        if number % 2**power == 0:
            return f"{number >> power}{suffix}"
    return str(number)
