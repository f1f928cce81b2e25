"""The registry of the pods' images, which `images.toml` describes."""

import sys
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from localkube.controlplane.lock import Report

from ..conformance import images
from . import environments

RECIPES = tomllib.loads(Path(__file__).with_name("images.toml").read_text(encoding="utf-8"))


def registry(
    folder: Path, *, report: Report, recipes: Mapping[str, Any] = RECIPES
) -> AbstractContextManager[str]:
    """Serve the images, making those that are not in the cache, and yield the address."""
    complete = {name: recipe | _environment(recipe) for name, recipe in recipes.items()}
    return images.registry(tags(recipes), folder=folder, report=report, recipes=complete)


def tags(recipes: Mapping[str, Any]) -> list[str]:
    """Name the images, with their tags."""
    return [f"{name}:{tag}" for name, recipe in recipes.items() for tag in recipe["tags"]]


def _environment(recipe: Mapping[str, Any]) -> dict[str, Any]:
    if not (name := recipe.get("environment")):
        return {}
    prefix = sys.prefix if name == "host" else environments.PLACE.format(name)
    return {"env": [f"PATH={prefix}/bin:{images.PATH.removeprefix('PATH=')}", "PYTHONUNBUFFERED=1"]}
