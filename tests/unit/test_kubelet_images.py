"""The images of `make test-kubelet`: each that the notebooks' manifests name can be pulled there."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "dataset",
    "elastic-job",
    "first-pods",
    "indexed-job",
    "operators",
    "pytorch-job",
    "torch-elastic",
    "torch-elastic-eks",
    "train-job",
    "trainer",
    "volume",
)


def full_name(image):
    """Return the repository with its registry, and the tag."""
    name, _, tag = image.partition(":")
    head, *rest = name.split("/")
    if not rest:
        name = f"docker.io/library/{head}"
    elif "." not in head:
        name = f"docker.io/{name}"
    return name, tag or "latest"


def test_every_image_of_the_notebooks_manifests_has_a_recipe_with_its_tag():
    recipes = tomllib.loads((ROOT / "tests" / "kubelet" / "images.toml").read_text(encoding="utf-8"))
    named = {
        found
        for folder in FOLDERS
        for path in (ROOT / "manifests" / folder).rglob("*.yaml")
        for found in re.findall(
            r'^\s*(?:- )?image: "?([\w./:-]+)', path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    missing = {
        image
        for image in named
        if full_name(image)[1] not in recipes.get(full_name(image)[0], {}).get("tags", ())
    }
    assert "busybox" in named
    assert not missing
