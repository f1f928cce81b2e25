"""The engine: applies each rule to the facts, and puts the causes that they find in order. Pure.

A rule is a function from `Facts` to causes. The kit's are in the modules of `kitlib.causes.rules`, each a
family of causes that lists its rules in ``RULES``; a package adds its own by entry points of the group
``kitlib.causes``, each of which loads one rule.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import replace

from kitlib import plugins
from kitlib.causes import rules
from kitlib.causes.cause import CONSEQUENCE, Cause
from kitlib.causes.facts import Facts
from kitlib.display.tracebacks import time_key

Rule = Callable[[Facts], Iterable[Cause]]
GROUP = "kitlib.causes"


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Load the rules: the kit's, and those of entry points."""
    modules = sorted(module.name for module in pkgutil.iter_modules(rules.__path__))
    own = [
        rule
        for name in modules
        for rule in getattr(importlib.import_module(f"{rules.__name__}.{name}"), "RULES", ())
    ]
    return (*own, *(plugins.load(entry) for entry in plugins.entries(GROUP).values()))


def causes(facts: Facts, among: Iterable[Rule] | None = None) -> list[Cause]:
    """Find the causes without duplicates: the most certain first, then the earliest.

    A consequence is listed only if no other cause is known; otherwise the first cause rules it out.
    """
    candidates = [cause for rule in (all_rules() if among is None else among) for cause in rule(facts)]
    candidates.sort(key=lambda cause: (-cause.certainty, not cause.time, time_key(cause.time)))
    ranked = list({cause.line: cause for cause in reversed(candidates)}.values())[::-1]
    primary = [cause for cause in ranked if cause.certainty > CONSEQUENCE]
    if not primary:
        return ranked
    follow = tuple(f"{cause.line}: a consequence" for cause in ranked if cause.certainty == CONSEQUENCE)
    return [replace(primary[0], ruled_out=(*primary[0].ruled_out, *follow)), *primary[1:]]
