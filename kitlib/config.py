"""Settings from environment variables, and the folders that come with the kit.

They are read when needed, never at import. Settings of one cluster or run are arguments instead.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kitlib.errors import BadInput

DEFAULT_CLUSTER = "trainyard"
# PyTorch's official image; the local cluster runs this Python environment instead.
DEFAULT_IMAGE = "pytorch/pytorch:2.15.0-cuda13.2-cudnn9-runtime"
_LABEL = re.compile(r"[\w./-]{1,317}=[\w.-]{0,63}", re.ASCII)
EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent  # of the packages: the checkout, or site-packages
# The folder of docs/, images/, manifests/, notebooks/, programs/, tools/ and trainers/: in a wheel data/.
DATA = next(folder for folder in (PACKAGE / "data", ROOT) if folder.is_dir())


@dataclass(frozen=True)
class Settings:
    """Settings from environment variables.

    Attributes:
        image: Image of the training container (``TRAINYARD_IMAGE``); empty leaves it to the cluster.
        registry: Mirrors for all pods of the kit (``TRAINYARD_REGISTRY``: ``mirror.example/hub`` for Docker
            Hub, ``ghcr.io=mirror.example/ghcr`` for others, separated by spaces); empty is none.
        run_as_user: User ID of training pods and helpers (``TRAINYARD_RUN_AS_USER``); None is the
            kit's default, 0 root.
        pull_secret: Secret with which nodes pull that image (``TRAINYARD_PULL_SECRET``); None for a public
            image, or one that the nodes' own identity may pull.
        workshop: Label of all objects, to tell users of a shared cluster apart (``TRAINYARD_WORKSHOP``).
        storage_class: Default class of volumes (``TRAINYARD_STORAGE_CLASS``); None: the cluster's default.
        tolerations: Tolerations of the kit's pods (``TRAINYARD_TOLERATIONS``, taints as kubectl writes
            them: ``dedicated=training:NoSchedule nvidia.com/gpu``).
        labels: Labels of all its objects (``TRAINYARD_LABELS``: ``team=vision cost-center=42``); a cluster
            may require them.
        provider: Default provider (``TRAINYARD_PROVIDER``); a workshop's handout sets ``existing``.
        budget: Limit in US dollars for clusters at a cloud (``TRAINYARD_BUDGET``); None is no limit.
    """

    image: str
    workshop: str
    storage_class: str | None = None
    tolerations: tuple[dict[str, str], ...] = ()
    budget: float | None = None
    pull_secret: str | None = None
    run_as_user: int | None = None
    registry: str = ""
    provider: str = "local"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def pull_secrets(self) -> list[dict[str, str]] | None:
        """The imagePullSecrets of a pod's spec."""
        return [{"name": self.pull_secret}] if self.pull_secret else None


def read(environment: dict[str, str] | None = None) -> Settings:
    env = os.environ if environment is None else environment
    return Settings(
        image=env.get("TRAINYARD_IMAGE") or "",
        workshop=env.get("TRAINYARD_WORKSHOP") or "self-paced",
        storage_class=env.get("TRAINYARD_STORAGE_CLASS") or None,
        tolerations=tuple(map(_toleration, env.get("TRAINYARD_TOLERATIONS", "").replace(",", " ").split())),
        pull_secret=env.get("TRAINYARD_PULL_SECRET") or None,
        registry=env.get("TRAINYARD_REGISTRY") or "",
        provider=env.get("TRAINYARD_PROVIDER") or "local",
        labels=_labels(env.get("TRAINYARD_LABELS") or ""),
        run_as_user=_user(env.get("TRAINYARD_RUN_AS_USER") or None),
        budget=dollars(budget_text, "TRAINYARD_BUDGET")
        if (budget_text := env.get("TRAINYARD_BUDGET"))
        else None,
    )


def dollars(amount: str | float, option: str) -> float:
    """Parse an amount of US dollars; raise BadInput if it is not one."""
    try:
        number = math.nan if isinstance(amount, bool) else float(amount)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise BadInput("this is not an amount of dollars", about=f"{option}={amount}", fix=f"`{option}=20`")
    return number


def _user(number: str | None) -> int | None:
    if number is not None and not (number.isascii() and number.isdecimal()):
        fix = "set it to a number, such as 1000 or 0, or unset it"
        raise BadInput("this is not a user ID", about=f"TRAINYARD_RUN_AS_USER={number}", fix=fix)
    return None if number is None else int(number)


def _labels(text: str) -> dict[str, str]:
    words = text.replace(",", " ").split()
    for word in words:
        if not _LABEL.fullmatch(word):
            fix = "write key=value, separated by spaces"
            raise BadInput("this is not a label", about=f"TRAINYARD_LABELS: {word}", fix=fix)
    return dict(word.split("=") for word in words)


def _toleration(taint: str) -> dict[str, str]:
    """Build the toleration of a taint ``key=value:Effect``; value and effect are optional."""
    subject, _, effect = taint.partition(":")
    key, equals, value = subject.partition("=")
    if not key or effect not in EFFECTS:
        fix = f"write key=value:Effect; the effects are {', '.join(filter(None, EFFECTS))}"
        raise BadInput("this is not a taint", about=f"TRAINYARD_TOLERATIONS: {taint}", fix=fix)
    operator = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {"key": key} | operator | ({"effect": effect} if effect else {})


def home_directory() -> Path:
    """Locate the user's home folder; raise BadInput if there is none, as for users of OpenShift."""
    try:
        return Path.home()
    except RuntimeError as error:
        what, about = "neither HOME nor /etc/passwd names a home folder", f"user {os.getuid()}"
        raise BadInput(what, about=about, fix="export HOME=FOLDER, one that you may write to") from error


def state_folder() -> Path:
    """Locate the folder of state that cannot be recreated: ``$XDG_STATE_HOME/trainyard``."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache_folder() -> Path:
    """Locate the folder of files that can be recreated: ``$XDG_CACHE_HOME/trainyard``."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def _xdg(variable: str, default: str) -> Path:
    configured = Path(os.environ.get(variable, ""))
    return (configured if configured.is_absolute() else home_directory() / default) / "trainyard"


def manifests(*parts: str) -> Path:
    """Locate a file or a folder of ``manifests/``."""
    path = DATA.joinpath("manifests", *parts)
    if not path.exists():
        raise BadInput("a file of the kit is missing", about=str(path), fix="install the kit again")
    return path


def find(path: str | os.PathLike[str]) -> Path:
    """Locate an existing file: relative to the working directory, or else to `DATA`.

    So ``trainers/digits_ddp.py`` is found from any folder, and in an installed environment.
    """
    fix = "give the path of an existing file, such as trainers/digits_ddp.py"
    if not isinstance(path, str | os.PathLike):
        raise BadInput("this is not the path of a file", about=repr(path)[:200], fix=fix)
    expanded = Path(path).expanduser()
    for candidate in (expanded, DATA / expanded):
        if candidate.is_file():
            return candidate.resolve()
    places = f"{Path.cwd()} and {DATA}"
    raise BadInput("there is no such file", about=f"{expanded}, looked for in {places}", fix=fix)
