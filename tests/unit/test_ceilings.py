"""The ceilings that packages keep; CONTRIBUTING.md says how somebody proceeds who goes over one."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Multiples of ROUND: a correction edits nothing here, and a new capability one line.
LINES = {
    "kitlib": 20_500,
    "localkube": 35_000,
    "programs": 2_000,
    "trainers": 10_000,
    "trainyard_kit": 19_000,
    "tests": 68_000,
}
ROUND = {"kitlib": 500}  # the others 1,000
PRODUCT = ("kitlib", "localkube", "trainyard_kit")
ENTRIES = 14  # at a package's root
ENTRIES_BELOW = 22  # in a folder below it
FILE_LINES = 500
FUNCTION_LINES = 60
TEST_NAME = 80  # characters
ANY = {"kitlib": 6, "localkube": 14, "trainyard_kit": 7}  # arguments and results of public functions
PRONOUNS = {"each", "other", "others", "found", "said", "told", "given", "whose", "there", "made", "wanted"}
PRONOUN_PERCENT = 2
MORE_PRONOUNS = {
    "own",
    "every",
    "those",
    "these",
    "kept",
    "begun",
    "gone",
    "asked",
    "held",
    "taken",
    "seen",
    "who",
}
BOUND_PERCENT = dict.fromkeys(
    ("bench", "kitlib", "localkube", "programs", "tools", "trainers", "trainyard_kit"), 1
)


def python_files(package: str) -> list[Path]:
    """List a package's own files, without those that protoc makes."""
    return [path for path in sorted((ROOT / package).rglob("*.py")) if "_pb2" not in path.name]


@dataclass
class Bindings:
    """What a package binds: its functions with their places, its loop variables, and all names."""

    functions: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]
    loops: list[str]
    names: list[str]


@cache
def bindings(package: str) -> Bindings:
    """Collect them; a function is kept without its body, which takes the memory."""
    bound = Bindings([], [], [])
    for path in python_files(package):
        functions = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            kind = type(node)  # of millions of nodes; a match takes three times as long
            if kind is ast.Name:
                if type(node.ctx) is ast.Store:
                    bound.names.append(node.id)
            elif kind is ast.arg:
                bound.names.append(node.arg)
            elif kind is ast.For or kind is ast.comprehension:
                bound.loops += [name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)]
            elif kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
                functions.append(node)
        bound.functions += [(str(path.relative_to(ROOT)), function) for function in functions]
        for function in functions:
            function.body = []
    return bound


def entries(folder: Path) -> set[str]:
    """Name the modules and packages of a folder, without what every package has."""
    packages = {path.name for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    modules = {path.name for path in folder.glob("*.py") if "_pb2" not in path.name}
    return packages | modules - {"__init__.py", "__main__.py"}


def is_any(annotation: ast.expr | None) -> bool:
    """Tell whether an annotation says nothing: ``Any``, or ``Any | None``."""
    if isinstance(annotation, ast.BinOp):
        return is_any(annotation.left) or is_any(annotation.right)
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


@pytest.mark.parametrize("package", LINES)
def test_a_package_has_no_more_lines_than_its_ceiling(package):
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in python_files(package))
    assert lines <= LINES[package], f"{package} has {lines} lines: take something out, or see CONTRIBUTING.md"


def test_ceilings_are_round_numbers():
    assert {name: lines for name, lines in LINES.items() if lines % ROUND.get(name, 1000)} == {}


@pytest.mark.parametrize("package", PRODUCT)
def test_a_folder_has_no_more_entries_than_a_reader_keeps_in_mind(package):
    assert len(entries(ROOT / package)) <= ENTRIES
    folders = {path.parent for path in python_files(package)} - {ROOT / package}
    crowded = {str(folder.relative_to(ROOT)): len(entries(folder)) for folder in folders}
    assert {name: count for name, count in crowded.items() if count > ENTRIES_BELOW} == {}


@pytest.mark.parametrize("package", LINES)
def test_files_and_functions_are_short_enough_to_be_read_at_once(package):
    files = [path for path in python_files(package) if len(path.read_text("utf-8").splitlines()) > FILE_LINES]
    assert [str(path.relative_to(ROOT)) for path in files] == []
    if package == "tests":
        return
    long = {
        f"{path}:{function.name}"
        for path, function in bindings(package).functions
        if function.end_lineno - function.lineno + 1 > FUNCTION_LINES
    }
    assert long == set()


def test_names_of_tests_are_short_and_begin_with_a_subject():
    names = {function.name for _, function in bindings("tests").functions}
    starts = ("test_what_", "test_who_")
    assert [name for name in names if name.startswith("test_") and len(name) > TEST_NAME] == []
    assert [name for name in names if name.startswith(starts)] == []


@pytest.mark.parametrize("package", ANY)
def test_public_functions_say_what_they_take_and_return(package):
    untyped = [
        f"{path}:{function.lineno} {function.name}"
        for path, function in bindings(package).functions
        if not function.name.startswith("_")
        for annotation in (
            function.returns,
            *(argument.annotation for argument in (*function.args.args, *function.args.kwonlyargs)),
        )
        if is_any(annotation)
    ]
    assert len(untyped) <= ANY[package], "\n".join(untyped)


@pytest.mark.parametrize("package", [*LINES, "bench", "tools"])
def test_loop_variables_are_nouns_of_what_is_looped_over(package):
    names = bindings(package).loops
    pronouns = [name for name in names if name in PRONOUNS]
    assert 100 * len(pronouns) <= PRONOUN_PERCENT * len(names), f"{len(pronouns)} of {len(names)}"


@pytest.mark.parametrize("package", BOUND_PERCENT)
def test_names_are_nouns_of_what_they_hold(package):
    names = bindings(package).names
    pronouns = [name for name in names if name in PRONOUNS | MORE_PRONOUNS]
    assert 100 * len(pronouns) <= BOUND_PERCENT[package] * len(names), f"{len(pronouns)} of {len(names)}"
