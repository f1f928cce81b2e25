"""The parts of Trainyard that kitlib loads by name when they are first used, and never imports itself.

``clouds`` and ``workshop`` need extras of the distribution, which somebody who stays local does not install;
``exercises`` belongs to the notebooks.
Each entry is an import string, ``package.module:attribute``; an attribute of "" is the module itself.
"""

import importlib
import importlib.util
from typing import Any

from kitlib.errors import ProviderFailed

# The class of each provider: a kitlib.clusters.base.Cluster.
PROVIDERS = {
    "local": "kitlib.clusters.local:LocalCluster",
    "existing": "kitlib.clusters.existing:ExistingCluster",
    "eks": "clouds.eks.cluster:EksCluster",
    "gke": "clouds.gke.cluster:GkeCluster",
}
# Reads a template by which a provider creates clusters.
TEMPLATES = {"eks": "clouds.eks.stacks:template"}
# Names of `kit`, as in kit.workshop.
API = {
    "check": "exercises:check",
    "delete_resources": "clouds.resources:delete_resources",
    "list_resources": "clouds.resources:list_resources",
    "workshop": "workshop:",
}
# Commands of `kit` in a terminal.
COMMANDS = {
    "extend": "clouds.cli:extend",
    "record": "clouds.cli:record_command",
    "reset": "workshop.cli:reset",
    "resources": "clouds.cli:resources",
    "workshop": "workshop.cli:workshop",
}
# Describes what the nodes of a cluster cost.
PRICE = "clouds.price_table:describe_price"
# Called with the API client when a kubeconfig has been connected to.
ON_CONNECT = ("workshop.progress_reporter:follow",)


def load(name: str) -> Any:
    """Import what an import string names.

    Raises:
        ProviderFailed: Its package, or one that it needs, is not installed.
    """
    module, _, attribute = name.partition(":")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ProviderFailed(
            f"the Python package {error.name} is not installed",
            about=name.rstrip(":"),
            fix="make setup" if package == "exercises" else f"pip install 'trainyard[{package}]'",
        ) from error
    return getattr(loaded, attribute) if attribute else loaded


def is_installed(name: str) -> bool:
    """Whether the package of an import string can be found, without loading it."""
    return importlib.util.find_spec(name.partition(":")[0].partition(".")[0]) is not None
