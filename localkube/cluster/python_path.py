"""The packages that this Python imports from outside: editable installs, chained environments, PYTHONPATH.

Containers see these places as they see the environment. Not here: the environment itself (`preparation`).
"""

import contextlib
import json
import os
import site
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Of a home: what holds keys and tokens, and never packages.
_SECRET = ".aws .azure .cert .config .docker .gnupg .kube .netrc .oci .password-store .pki .secrets .ssh"
SECRET = frozenset(_SECRET.split())
LINKS_DEPTH = 2  # how deep installers' links are followed: those of a package's files
MAX_LINKS, PATHS_DEPTH = 50_000, 4


@dataclass(frozen=True)
class PythonPath:
    """Places of packages.

    Attributes:
        shown: Directories and files that containers see.
        searched: Those of them that an interpreter of the environment does not search by itself.
        user_base: The directory of the user's own packages; empty where they are not used.
        refused: What containers do not see, and why.
        builds: Whether a finder builds its package anew when it is imported.
    """

    shown: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    user_base: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    builds: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which an interpreter finds them."""
        values = {"PYTHONPATH": ":".join(self.searched), "PYTHONUSERBASE": self.user_base}
        # meson-python writes a log beside the build, which containers only read, unless it is to print.
        values |= {"MESONPY_EDITABLE_VERBOSE": "1"} if self.builds else {}
        return {name: value for name, value in values.items() if value}


def read(entries: Iterable[str] = (), *, hidden: Iterable[str] = (), own: Iterable[str] = ()) -> PythonPath:
    """Read the path of this interpreter, which has just started.

    Args:
        entries: The path of another process of this environment, such as a notebook's.
        hidden: Directories that no container may see.
        own: Directories that containers see anyway.
    """
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if os.path.isabs(entry)]
    relative = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(":")} - {
        *inherited
    }
    fresh = [entry for entry in sys.path[1:] if entry not in relative]
    by_itself = {entry for entry in fresh if entry not in inherited}
    places = dict.fromkeys([*entries, *fresh])
    refused: dict[str, str] = {}
    shown: list[str] = []
    searched = [*places, *site.getsitepackages(), site.getusersitepackages()]
    for place in dict.fromkeys([*places, *_mapped(), *_links(searched)]):
        if not os.path.isabs(place) or not os.path.exists(place) or _is_within(place, own):
            continue
        if reason := _refusal(place, hidden):
            refused[place] = reason
        else:
            shown += (place, os.path.realpath(place))
    return PythonPath(
        tuple(_outermost(shown)),
        tuple(
            place
            for place in places
            if place not in {*by_itself, *refused} and os.path.isabs(place) and os.path.exists(place)
        ),
        site.getuserbase() if site.ENABLE_USER_SITE and site.getusersitepackages() in shown else "",
        refused,
        builds=any(map(_meson_source, sys.meta_path)),
    )


def _mapped() -> Iterator[str]:
    """Yield the places to which finders of editable installs map names.

    https://setuptools.pypa.io/en/latest/userguide/development_mode.html
    """
    for module in [module for name, module in sys.modules.items() if "editable" in name]:
        yield from _paths(vars(module))
    for finder in sys.meta_path:
        if "editable" in type(finder).__module__:
            yield from _paths(vars(finder))
        if source := _meson_source(finder):
            yield source


def _meson_source(finder: object) -> str:
    """Find the project whose modules meson-python's finder finds: it has ninja compare all with the build.

    https://mesonbuild.com/meson-python/how-to-guides/editable-installs.html
    """
    place = getattr(finder, "_build_path", None)
    if isinstance(place, str):
        with contextlib.suppress(OSError, ValueError, KeyError):
            path = os.path.join(place, "meson-info", "meson-info.json")
            return str(json.loads(Path(path).read_text(encoding="utf-8"))["directories"]["source"])
    return ""


def _paths(value: object, depth: int = 0) -> Iterator[str]:
    """Yield the absolute paths among values, those of a package's files as its directory."""
    file = f"{value}.py"  # setuptools maps a module that is a file to its path without the suffix
    value = file if os.path.isfile(file) and not os.path.exists(str(value)) else value
    if isinstance(value, str) and os.path.isabs(value) and os.path.exists(value):
        place = Path(value)
        if place.is_file() and (place.parent / "__init__.py").exists():
            place = place.parent
        while (place.parent / "__init__.py").exists():
            place = place.parent
        yield str(place)
    elif depth < PATHS_DEPTH and isinstance(value, Mapping):
        for name, item in value.items():
            if not str(name).startswith("__"):
                yield from _paths(item, depth + 1)
    elif depth < PATHS_DEPTH and isinstance(value, list | tuple | set):
        for item in value:
            yield from _paths(item, depth + 1)


def _links(places: Iterable[str]) -> Iterator[str]:
    """Yield where the links in directories of packages lead: link trees, a cache of uv's."""
    left = MAX_LINKS
    for place in places:
        depth = 20 if "__editable__" in place else LINKS_DEPTH
        waiting = [(place, depth)] if os.path.isdir(place) else []
        while waiting and left:
            directory, depth = waiting.pop()
            try:
                entries = list(os.scandir(directory))
            except OSError:
                continue
            for entry in entries:
                left = max(0, left - 1)
                if entry.is_symlink():
                    yield _link_target(os.path.realpath(entry.path), is_top=directory == place)
                elif depth > 1 and entry.is_dir() and not entry.name.startswith((".", "__pycache__")):
                    waiting.append((entry.path, depth - 1))


def _link_target(path: str, *, is_top: bool) -> str:
    """Widen the target of a link to a file of a package to all that lies beside it."""
    parts = Path(path).parts
    if "archive-v0" in parts:  # https://docs.astral.sh/uv/concepts/cache/
        return str(Path(*parts[: parts.index("archive-v0") + 1]))
    return path if is_top or os.path.isdir(path) else os.path.dirname(path)


def _refusal(place: str, hidden: Iterable[str]) -> str:
    """Explain why containers cannot see a place; empty if they can."""
    real = os.path.realpath(place)
    home = os.path.realpath(os.path.expanduser("~"))
    if any(_is_within(private, [real]) or _is_within(real, [private]) for private in hidden):
        return "it has the clusters' own files"
    if any(_is_within(parent, [real]) for parent in (home, "/home", "/root")):
        return "it is a home, or above one"
    if SECRET & set(Path(real).parts):
        return "it is where keys are kept"
    homes = [f"/home/{real.split('/')[2]}"] if real.startswith("/home/") else ["/root"]
    if _is_within(real, homes) and not _is_within(real, [home]) and not _is_within(home, homes):
        return "it is in the home of another user"
    return "" if os.access(real, os.R_OK) else "you cannot read it"


def _is_within(place: str, directories: Iterable[str]) -> bool:
    return any(
        place == directory or place.startswith(f"{directory.rstrip('/')}/") for directory in directories
    )


def _outermost(places: Iterable[str]) -> list[str]:
    """Leave out what lies within others; what a directory does not show of itself stays."""
    outermost = list[str]()
    for place in sorted(dict.fromkeys(places), key=len):
        below = [place[len(directory) :] for directory in outermost if _is_within(place, [directory])]
        if all("/." in part for part in below):
            outermost.append(place)
    return sorted(outermost)
