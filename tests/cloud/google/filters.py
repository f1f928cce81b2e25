"""Filters of lists, as far as the fake knows them: terms that all have to fit. Pure."""

import re

from .api_errors import ApiError

_TERM = re.compile(
    r"""\s*\(?\s*([\w.\-"]+)\s*(!=|=|:|eq\b|ne\b)\s*("[^"]*"|[^\s)]+)\s*\)?\s*(?:AND\b|and\b)?"""
)


def fits(body: dict, condition: str) -> bool:
    """Return whether a thing fits a filter: terms ``key = value``, ``key:value`` (has), joined by AND.

    Raises:
        ApiError: It is more than that.
    """
    place = 0
    while place < len(condition):
        term = _TERM.match(condition, place)
        if term is None:
            raise ApiError("INVALID_ARGUMENT", f"Invalid filter for the fake: {condition!r}")
        place = term.end()
        key, sign, wanted = term[1].replace('"', ""), term[2], term[3].strip('"')
        found: object = body
        for word in key.split("."):
            found = found.get(word) if isinstance(found, dict) else None
        if isinstance(found, list):
            good = (wanted in found) == (sign != "!=")
        elif sign == ":":
            good = found is not None if wanted == "*" else wanted in str(found or "")
        else:
            good = (str(found) == wanted) == (sign in ("=", "eq"))
        if not good:
            return False
    return True
