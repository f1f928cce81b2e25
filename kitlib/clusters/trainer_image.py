"""The trainer image that was built for a cluster, stored in a ConfigMap of the cluster itself.

So every job of every user gets it, from any machine. It is built and pushed by
`trainyard_kit.container_images`.
"""

import re
import sys
from collections.abc import Collection

from kitlib import config
from kitlib.k8s import manifests, names
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.manifests import merge

TRAINER = "trainyard/trainer"  # the image's name in every registry
FOLDER = "trainer-image"  # of manifests/
# Modules in PyTorch's official image: torch, torchvision, and their dependencies.
OFFICIAL = frozenset(
    ["PIL", "cuda", "filelock", "fsspec", "functorch", "isympy", "jinja2", "markupsafe", "mpmath", "networkx"]
    + ["numpy", "nvidia", "setuptools", "sympy", "torch", "torchgen", "torchvision", "triton"]
    + ["typing_extensions"]
)
BUILDER = (
    '`kit.build_image(cluster=cluster, registry="HOST/PATH")` builds the trainers\' image; '
    "or name one: `image=`"
)
# The tags of https://hub.docker.com/r/pytorch/pytorch/tags, and an image there with another one.
HUB_TAGS = r"latest|\d+\.\d+(?:\.\d+)?-cuda\d+(?:\.\d+)?-cudnn\d+-(?:runtime|devel)"
MISSING = re.compile(rf"(?:(?:index\.)?docker\.io/)?pytorch/pytorch:(?!(?:{HUB_TAGS})$)([^@]+)")


def lacking(image: str, modules: Collection[str]) -> list[str]:
    """List which modules an image lacks, if it is PyTorch's official one, whose content is known."""
    known = OFFICIAL | sys.stdlib_module_names
    return sorted(set(modules) - known) if image.endswith(config.DEFAULT_IMAGE) else []


def missing_tag(image: str) -> str:
    """Explain that Docker Hub has no such tag of PyTorch's official image; empty if it has, or may have."""
    wrong = MISSING.fullmatch(image)
    if wrong is None:
        return ""
    example = config.DEFAULT_IMAGE.rpartition(":")[2]
    return f'Docker Hub has no tag "{wrong[1]}" of pytorch/pytorch; one that it has is "{example}"'


def remember(kube: Kube, image: str) -> None:
    """Write the image's reference to the cluster, where all its users may read it."""
    labels = names.labels()
    del labels[names.EXPIRES]  # it is kept as long as the cluster
    for kind in ("role", "rolebinding", "configmap"):
        (item,) = manifests.read(config.manifests(FOLDER, f"{kind}.yaml"))
        data = {"data": {"image": image}} if kind == "configmap" else {}
        kube.apply(merge(item, {"metadata": {"labels": labels}} | data))


def recall(kube: Kube) -> str | None:
    """Read the image's reference from the cluster; None if none is remembered."""
    (item,) = manifests.read(config.manifests(FOLDER, "configmap.yaml"))
    meta = item["metadata"]
    public = kube.in_namespace(meta["namespace"])  # without an image there is no role that allows to read it
    config_map = allowed(lambda: public.find("ConfigMap", meta["name"]))
    return config_map["data"]["image"] if config_map else None
