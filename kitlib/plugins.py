"""Plug-ins by entry points: providers of clusters, and names that other packages add to ``kit``.

An installed distribution names them in its metadata, as with pytest's and Jupyter's plug-ins, so kitlib
imports none of them. The groups, and what an entry point of each loads:

=====================  =================================================================
``kitlib.providers``   the class of a further provider: a `kitlib.clusters.base.Cluster`
``kitlib.names``       an attribute of ``kit``, as in ``kit.workshop``
``kitlib.runs``        a function of a run's method: its ``timeline``, its ``dashboard``
``kitlib.output``      ``events`` of the logs of a program that prints no JSON; ``reader`` of a rank's
``kitlib.causes``      a rule of ``run.why()``: a function from `kitlib.causes.Facts` to causes
``kitlib.launches``    a function from a cluster and a job's objects to warnings, before they are created
``kitlib.connected``   a function that is called with the API client of a connected cluster
=====================  =================================================================

Source: https://packaging.python.org/en/latest/specifications/entry-points/
"""

import functools
import importlib.util
from importlib import metadata
from typing import Any

from kitlib.errors import BadInput, ProviderFailed

# The distribution's extras, which a local cluster does not need.
EXTRAS = {"trainyard_kit.clouds": "clouds", "trainyard_kit.workshop": "workshop"}
IN_PODS = {"elastic": ("kopf", "etcd")}
REINSTALL = "install trainyard-kit again; in a clone: make setup"


@functools.cache
def entries(group: str) -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=group)}


def load(entry: metadata.EntryPoint) -> Any:
    """Import what an entry point names; raise ProviderFailed if a package for it is not installed."""
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(".".join(entry.module.split(".")[:2]))
        what = f"the Python package {error.name} is not installed"
        fix = f"install trainyard-kit with its extra [{extra}]" if extra else REINSTALL
        raise ProviderFailed(what, about=entry.value, fix=fix) from error


def find(group: str, name: str) -> Any:
    """Load the entry point of a name; raise ProviderFailed if no installed distribution has it."""
    if name not in entries(group):
        raise ProviderFailed(
            f"no installed package adds {name}", about=f"entry points {group}", fix=REINSTALL
        )
    return load(entries(group)[name])


def require_extra(extra: str, *, about: str) -> None:
    """Check that local pods can import the packages of an extra."""
    missing = [name for name in IN_PODS[extra] if importlib.util.find_spec(name) is None]
    if missing:
        what = f"local pods run with this environment, which lacks {' and '.join(missing)}"
        raise BadInput(what, about=about, fix=f"install trainyard-kit with its extra [{extra}]")


def load_all(group: str) -> list[Any]:
    """Load the entry points of a group whose packages are installed."""
    find_spec = importlib.util.find_spec
    return [load(entry) for entry in entries(group).values() if find_spec(entry.module.partition(".")[0])]
