"""Write docs/api.md, the list of the public API, from signatures and docstrings.

usage: .venv/bin/python tools/api_docs.py [--check]
"""

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
# Methods of `kitlib.clusters.base.Cluster` that a provider implements, and that notebooks do not call.
PROVIDER_HOOKS = {
    "announce_end",
    "built_in",
    "create",
    "credentials",
    "end_notice",
    "explain",
    "find",
    "grant_pod_access",
    "image_notice",
    "list",
    "load_images",
    "operator_manifests",
    "pod_additions",
    "pod_annotations",
    "pod_security",
    "revoke_pod_access",
    "share_files",
    "show_packages",
    "training_gpus",
}
HEAD = """# The public API

`import kitlib as kit`: what notebooks call. `help(kit.launch)` shows arguments, units, errors and an example.
This page is written by `tools/api_docs.py`; a test compares the two.
"""


def page() -> str:
    """Build the page: a table of functions and one of each class's methods."""
    kit = importlib.import_module("kitlib")
    public = {name: getattr(kit, name) for name in sorted(kit.__all__, key=str.lower)}
    lines = [HEAD, "## Functions\n", *_table(_functions("kit", public))]
    for name, member in public.items():
        if inspect.isclass(member):
            lines += [f"\n## {name}\n", f"{_summary(member)}\n", *_table(_members(member))]
    for name, member in public.items():
        if inspect.ismodule(member):
            exported = {public_name: getattr(member, public_name) for public_name in member.__all__}
            lines += [
                f"\n## kit.{name}\n",
                f"{_summary(member)}\n",
                *_table(_functions(f"kit.{name}", exported)),
            ]
    return "\n".join(lines) + "\n"


def _functions(prefix: str, exported: dict[str, object]) -> Iterator[tuple[str, str]]:
    for name, member in exported.items():
        if inspect.isfunction(member):
            yield f"{prefix}.{name}{_arguments(member)}", _summary(member)


def _members(kind: type) -> Iterator[tuple[str, str]]:
    if not issubclass(kind, BaseException):
        yield f"{kind.__name__}{_arguments(kind)}", "create one"
    hooks = PROVIDER_HOOKS if kind.__name__ == "Cluster" else set()
    for name in sorted(name for name in dir(kind) if not name.startswith("_") and name not in hooks):
        member = inspect.getattr_static(kind, name)
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not inspect.isfunction(function) or kind.__mro__[-2] in (BaseException,) and not function.__doc__:
            continue
        summary = _summary(function) or _inherited(kind, name)
        yield (f".{name}" if isinstance(member, property) else f".{name}{_arguments(function)}"), summary


def _inherited(kind: type, name: str) -> str:
    definitions = (owner.__dict__[name] for owner in kind.__mro__ if name in owner.__dict__)
    return next((summary for owner in definitions if (summary := _summary(owner))), "")


def _arguments(function: Callable[..., object]) -> str:
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return (
        "("
        + ", ".join(str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in parameters)
        + ")"
    )


def _summary(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _table(rows: Iterator[tuple[str, str]]) -> list[str]:
    cells = [f"| `{call.replace('|', chr(92) + '|')}` | {summary} |" for call, summary in rows]
    return ["| Call | What it does |", "| --- | --- |", *cells] if cells else []


def main() -> int:
    """Write the page, or check with --check whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 if the page is outdated"
    )
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        print("docs/api.md is outdated: .venv/bin/python tools/api_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
