"""Causes that the API reports as messages: a container that cannot start, a pod that may not be created,
a claim without a volume, an eviction. What each message means is in ``signals.toml``.

A Warning that matches no pattern is shown as it is: it says more than "its pods are being created".
"""

import functools
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kitlib.causes.cause import CERTAIN, CONSEQUENCE, LIKELY, POSSIBLE, Cause, shorten
from kitlib.causes.facts import Facts
from kitlib.causes.rules.claims import has_volumes
from kitlib.causes.signals import LONGEST_MATCHED, Signal, signals
from kitlib.display.tables import parse_time
from kitlib.k8s import pods
from kitlib.k8s.manifests import Object

FAILED = ("FailureTarget", "Failed")  # conditions of a job that its controller no longer retries
# Warnings that say only that something failed, or nothing about a failure.
VAGUE = (
    "BackOff|BackoffLimitExceeded|Failed|UnsupportedFields|ProbeWarning|Killing|Unhealthy|FailedScheduling"
    "|ClaimLost"
)


@dataclass(frozen=True)
class Pattern:
    """A pattern of a signal, and what it means: an entry of ``signals.toml``."""

    kind: str
    what: str
    fix: str
    reason: str = ".*"
    message: str = ""
    likely: bool = False

    def match(self, signal: Signal) -> re.Match[str] | None:
        if not re.fullmatch(self.reason, signal.reason[:LONGEST_MATCHED]):
            return None
        return re.search(self.message, signal.message[:LONGEST_MATCHED], re.DOTALL)


@functools.cache
def patterns() -> tuple[Pattern, ...]:
    with Path(__file__).with_name("signals.toml").open("rb") as file:
        return tuple(Pattern(**entry) for entry in tomllib.load(file)["rule"])


def reported(facts: Facts) -> Iterator[Cause]:
    """Find the causes that conditions, containers' states and Events report."""
    if facts.phase == "Succeeded":
        return  # earlier problems are over
    grouped: dict[tuple[str, str, str], list[tuple[Signal, Pattern, re.Match[str]]]] = defaultdict(list)
    unknown = []
    for signal in signals(facts):
        if signal.kind == "PersistentVolumeClaim" and has_volumes(facts, signal.name):
            continue  # the class need not exist if volumes are created by hand
        pattern, match = next(
            ((item, match) for item in patterns() if (match := item.match(signal))), (None, None)
        )
        if pattern and match:
            grouped[signal.kind, signal.name, pattern.kind].append((signal, pattern, match))
        elif signal.warning and not re.fullmatch(VAGUE, signal.reason):
            unknown.append(signal)
    yield from _merged(cause_of(facts, *group) for group in grouped.values())
    known = {name for _, name, _ in grouped}
    for signal in {signal.name: signal for signal in unknown if signal.name not in known}.values():
        yield Cause(
            kind=signal.reason or "Warning",
            who=signal.who,
            what=f"reports {signal.reason}: {shorten(signal.message)}",
            fix=f"kubectl describe {signal.kind.lower()} {signal.name}",
            evidence=(signal.evidence,),
            certainty=CONSEQUENCE if facts.phase == "Failed" else POSSIBLE,
            time=signal.at,
        )


def cause_of(facts: Facts, *group: tuple[Signal, Pattern, re.Match[str]]) -> Cause:
    """Build the cause of an object's signals of one kind; the first pattern in the file decides."""
    signal, pattern, match = min(group, key=lambda entry: patterns().index(entry[1]))
    spec: Object = (signal.pod or {}).get("spec") or {}
    values = {name: value or "" for name, value in match.groupdict().items()}
    values |= {
        "namespace": _namespace(facts),
        "run": facts.run,
        "pod": signal.name,
        "node": spec.get("nodeName") or "",
        "part": signal.part,
        "message": shorten(signal.message),
    }
    values["source"] = _source(spec, values.get("volume", ""))
    values.setdefault("image", _image(spec, signal.part))
    filled = defaultdict(str, {name: shorten(value) for name, value in values.items()})
    return Cause(
        kind=pattern.kind,
        who=signal.who,
        what=" ".join(pattern.what.format_map(filled).split()).rstrip(" :"),
        fix=" ".join(pattern.fix.format_map(filled).split()),
        evidence=tuple({entry[0].reason: entry[0].evidence for entry in group}.values()),
        certainty=CONSEQUENCE
        if _by_controller(facts, signal, pattern)
        else LIKELY
        if pattern.likely
        else CERTAIN,
        time=signal.at,
        rank=pods.replica_id(signal.pod) if signal.pod else None,
    )


def _by_controller(facts: Facts, signal: Signal, pattern: Pattern) -> bool:
    """Check whether a pod was deleted by its job's controller after the job had failed."""
    failed = [pods.conditions(item).get(kind) for item in facts.creators for kind in FAILED]
    times = [condition.get("lastTransitionTime") for condition in failed if condition]
    gave_up, when = parse_time(min(filter(None, times), default=None)), parse_time(signal.at or None)
    return pattern.kind == "PodDeleted" and gave_up is not None and when is not None and when >= gave_up


def _merged(causes: Iterable[Cause]) -> Iterator[Cause]:
    """Merge the causes of several ranks that differ only in the rank."""
    by_what: dict[tuple[str, str], list[Cause]] = {}
    for cause in causes:
        by_what.setdefault((cause.kind, cause.what), []).append(cause)
    for first, *rest in by_what.values():
        subject = f"{first.who}, and {len(rest)} more," if rest else first.who
        yield Cause(**{**vars(first), "who": subject})


def _namespace(facts: Facts) -> str:
    items = [*([facts.main] if facts.main else []), *facts.pods]
    return next((item["metadata"].get("namespace", "") for item in items), "")


def _image(spec: Object, part: str) -> str:
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    images = [item.get("image", "") for item in containers if part in ("", item["name"])]
    return images[-1] if images else ""


def _source(spec: Object, volume: str) -> str:
    """Find the Secret or ConfigMap of a volume."""
    entry: Object = next((item for item in spec.get("volumes") or [] if item["name"] == volume), {})
    sources = [entry, *(entry.get("projected") or {}).get("sources", [])]
    names = [(item.get("secret") or item.get("configMap") or {}) for item in sources]
    return " or ".join(item.get("secretName") or item.get("name") or "" for item in names if item)


RULES = (reported,)
