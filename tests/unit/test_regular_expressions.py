"""Every regular expression of the product gets the worst text that its own form suggests, and must be linear.

Pods, logs, manifests and other programs write what they match. The texts are pumped: for each repetition of
an expression, its beginning, then what it repeats many times, then what it does not match.
"""

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from types import ModuleType

import pytest

from tests.unit.cpu_seconds import TooSlowError, cpu_seconds

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "kitlib",
    "localkube",
    "programs",
    "trainyard_kit/elastic_lab",
    "trainyard_kit/elasticdl",
    "trainyard_kit/exercises",
    "trainyard_kit/workshop",
)
FUNCTIONS = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
# Characters that a repetition is pumped with, where it takes them.
LETTERS = "a0A -_.,:;/([{<=|\"'\t\x1b\\%Z9~é\n"
MANY, SECONDS = 25_000, 0.2  # quadratic in so many characters is more
# Their text is short, or the reader's own; each with where that is.
OTHERWISE = {
    "kitlib/causes/known_errors.py": "a text is cut at its LONGEST",
    "kitlib/causes/rules/reported.py": "a message is cut at LONGEST",
    "kitlib/causes/rules/scheduling.py": "a message is cut at LONGEST",
    "kitlib/causes/signals.py": "a message is cut at LONGEST, a name is no longer than 253",
    "trainyard_kit/program_output.py": "the expression is the reader's; a head is cut at LONGEST_HEAD",
    "localkube/kubelet/containers/expansion.py": "it is searched up to the last ')': test_node_expansion.py",
    "localkube/kubelet/images/image_table.py": "the table is ours, and a reference is cut by store.py",
    "localkube/kubelet/images/store.py": "a reference is cut at LONGEST_REFERENCE",
    "localkube/kubelet/pods/plain_mode.py": "alternatives without repetition",
    "trainyard_kit/exercises/sandbox.py": "a class's name without repetition",
    "trainyard_kit/exercises/checks/pattern.py": "the expression is the reader's, and cut at LONGEST",
}


def modules(package: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "import re\n" in text:
            yield str(path.relative_to(ROOT)), ast.parse(text)


def patterns(package: str) -> Iterator[tuple[str, ast.expr, ast.Call]]:
    """Find the expressions by their calls, ``re.compile(…)`` and the like."""
    for path, tree in modules(package):
        for node in ast.walk(tree):
            match node:
                case ast.Call(ast.Attribute(ast.Name("re"), name), [pattern, *_]) if name in FUNCTIONS:
                    yield path, pattern, node


def value(path: str, pattern: ast.expr) -> str | bytes | None:
    """Evaluate an expression's text in its module; None where it is made of what is known later."""
    module: ModuleType = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    try:
        text = eval(compile(ast.Expression(pattern), path, "eval"), dict(vars(module)))  # noqa: S307
    except NameError:
        return None
    return text if isinstance(text, str | bytes) else None


def sample(parsed: object) -> str:
    """Make a text that an expression matches, as short as it goes."""
    return "".join(samples(item, letter="") for item in parsed)


def samples(item: tuple, *, letter: str) -> str:
    match item:
        case (codes.LITERAL, code):
            return chr(code)
        case (codes.ANY, _):
            return letter or "a"
        case (codes.NOT_LITERAL, code):
            return letter if letter and ord(letter) != code else "b"
        case (codes.IN, _):
            if letter and takes(frozen(item), letter):
                return letter
            return next(
                (character for character in LETTERS + "bcdefgh-\x00" if takes(frozen(item), character)), "a"
            )
        case (codes.MAX_REPEAT | codes.MIN_REPEAT | codes.POSSESSIVE_REPEAT, (least, most, body)):
            return "".join(samples(part, letter=letter) for part in body) * (max(least, 1) if most else 0)
        case (codes.SUBPATTERN, (*_, body)) | (codes.ATOMIC_GROUP, body):
            return "".join(samples(part, letter=letter) for part in body)
        case (codes.BRANCH, (_, branches)):
            return sample(branches[0])
        case _:
            return ""


@cache
def takes(item: object, letter: str) -> bool:
    """Check whether one character is matched by one item."""
    compiled = re._compiler.compile(state_of([item]))  # type: ignore[attr-defined]
    return compiled.fullmatch(letter) is not None


def frozen(item: object) -> object:
    return tuple(map(frozen, item)) if isinstance(item, list | tuple) else item


def state_of(items: list) -> object:
    parsed = _parser.SubPattern(_parser.State(), items)
    parsed.state.str = ""
    return parsed


def pumps(parsed: object, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the beginning and the unit of each repetition in an expression."""
    for item in parsed:
        match item:
            case (codes.MAX_REPEAT | codes.MIN_REPEAT | codes.POSSESSIVE_REPEAT, (_, most, body)):
                if most > 100:
                    units = {"".join(samples(part, letter=letter) for part in body) for letter in LETTERS}
                    yield from ((before, unit) for unit in sorted(units) if unit)
                    yield "", before + sample(body)
                yield from pumps(body, before)
            case (codes.SUBPATTERN, (*_, body)) | (codes.ATOMIC_GROUP, body):
                yield from pumps(body, before)
            case (codes.BRANCH, (_, branches)):
                for branch in branches:
                    yield from pumps(branch, before)
                    yield "", before + sample(branch)
        before += samples(item, letter="")
    if before:
        yield "", before


def texts(pattern: str | bytes, flags: int) -> Iterator[str]:
    """Yield the worst texts of an expression."""
    written = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    states = set()
    for beginning, unit in pumps(_parser.parse(written, flags & ~re.LOCALE)):
        for end in ("", "\0", "\n!", beginning):
            if unit and (beginning, unit, end) not in states:  # what matches nothing repeats nothing
                states.add((beginning, unit, end))
                yield beginning + unit * (MANY // len(unit)) + end


@cache
def sources() -> str:
    return "".join(
        path.read_text(encoding="utf-8") for name in PACKAGES for path in (ROOT / name).rglob("*.py")
    )


@cache
def assigned(path: str) -> dict[str, list[str]]:
    """Map the calls in a module to the names that get their results."""
    names = defaultdict(list)
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names[ast.dump(node.value)].append(ast.unparse(node.targets[0]).rpartition(".")[2])
    return names


def uses(call: ast.Call, path: str) -> set[str]:
    """Name the methods by which an expression is used."""
    method = call.func.attr  # type: ignore[attr-defined]
    if method != "compile":
        return {method}
    for name in assigned(path).get(ast.dump(call), ()):
        used = re.compile(rf"\b{name}\.(match|fullmatch|search|sub|findall|finditer|split)\b")
        source = (ROOT / path).read_text(encoding="utf-8")
        if calls := set(used.findall(source)) or set(used.findall(sources())):
            return calls
    return {"search"}


def slow_text(pattern: str | bytes, flags: int = 0, methods: Iterable[str] = ("search",)) -> str | None:
    """Find a text for which an expression takes more than linear time."""
    compiled = re.compile(pattern, flags)
    anchored = {"match", "fullmatch"}
    for text in texts(pattern, flags):
        subject = text.encode() if isinstance(pattern, bytes) else text
        try:
            with cpu_seconds(SECONDS):
                for method in anchored.intersection(methods):
                    getattr(compiled, method)(subject)
                if anchored.issuperset(methods):
                    continue
                for _ in islice(compiled.finditer(subject), 10_000):
                    pass
        except TooSlowError:
            return text
    return None


@pytest.mark.parametrize("package", PACKAGES)
def test_no_text_makes_an_expression_of_the_product_slow(package):
    slow = {}
    for path, pattern, call in patterns(package):
        text, where = value(path, pattern), f"{path}:{call.lineno}"
        if path in OTHERWISE:
            continue
        assert text is not None, f"{where}: an expression that is made of other text"
        flags = re.DOTALL if "DOTALL" in ast.unparse(call) else 0
        flags |= re.IGNORECASE if "IGNORECASE" in ast.unparse(call) or "re.I" in ast.unparse(call) else 0
        if (worst := slow_text(text, flags, uses(call, path))) is not None:
            slow[where] = (ast.unparse(pattern), f"{worst[:30]!r}…{worst[-10:]!r}")
    assert slow == {}, "rewrite it, or give its repetitions a maximum"


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"(?:a|a)*b",
        r"(\d+) of (\d+) pods",
        r"\s*\|\s*",
        r"\$(?:\$|\(([^)]*)\))",
        r"x/\S+\] failed",
        r".*\d+%\|",
        r"(?:[a-z]+\s*)*:",
        rb"\d+ of",
    ],
)
def test_the_search_finds_expressions_that_are_slow(pattern):
    assert slow_text(pattern) is not None


@pytest.mark.parametrize("pattern", [r"\bab*c", r"[a-z]+", r"(?<!\d)\d+ of", r"a{1,9}b", r"\$(\w{1,20})"])
def test_the_search_lets_pass_what_is_linear(pattern):
    assert slow_text(pattern) is None
