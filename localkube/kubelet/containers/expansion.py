"""Expand ``$(NAME)`` in a container's variables, command and arguments, within the kernel's limits.

Pure. As upstream: https://github.com/kubernetes/kubernetes/tree/master/third_party/forked/golang/expansion.
A result is measured before it is built: thirty variables, each twice the previous one, would be a gigabyte.
"""

import re
import resource
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Linear only if each "$(" has its ")": that is why only the text before the last ")" is searched.
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")

# A string with its NUL, and all of them with their pointers: https://man7.org/linux/man-pages/man2/execve.2.html
STRING_BYTES = 128 * 1024
_MIN_BYTES, _MAX_BYTES = 128 * 1024, 6 * 1024 * 1024
_POINTER_BYTES = 8
# In this process a short string takes a hundred bytes, ten times what the kernel counts.
MAX_STRINGS = 1 << 16
PATH_BYTES = 4096
MESSAGE_CHARACTERS = 1024  # of an Event; the names in it can be as long as a pod's specification


class ConfigError(Exception):
    """A container or a volume refers to a missing object, or exceeds the kernel's limits for a process.

    ``reason`` and ``message`` are those of the waiting state, such as ``CreateContainerConfigError`` and
    ``configmap "settings" not found``. A later attempt may succeed, unless it is ``permanent``.
    """

    def __init__(
        self, message: str, *, reason: str = "CreateContainerConfigError", permanent: bool = False
    ) -> None:
        super().__init__(message[:MESSAGE_CHARACTERS])
        self.reason = reason
        self.message = message[:MESSAGE_CHARACTERS]
        self.permanent = permanent


class ArgumentSpace:
    """The kernel's limit for the strings of one process: arguments and environment.

    Args:
        times: A multiple of the limit, where later strings replace earlier ones.
    """

    def __init__(self, *, times: int = 1) -> None:
        self._size = times * argument_bytes()
        self._string = STRING_BYTES if times == 1 else self._size
        self._used, self._count = 0, 0

    def add(self, what: str, *strings: str) -> None:
        """Count one string, the concatenation of several; ``what`` names it in the error."""
        size = sum(map(text_bytes, strings)) + 1
        if size > self._string:
            raise too_long(what, f"a string of {size} bytes, and the kernel takes {self._string}")
        self._used += size + _POINTER_BYTES
        self._count += 1
        if self._count > MAX_STRINGS:
            raise too_long(what, f"a process gets at most {MAX_STRINGS} arguments and variables")
        if self._used > self._size:
            raise too_long(what, f"the kernel takes {self._size} bytes of arguments and environment in all")


def argument_bytes() -> int:
    """Read the kernel's limit on arguments and environment together."""
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    quarter = _MAX_BYTES if stack == resource.RLIM_INFINITY else stack // 4
    return max(_MIN_BYTES, min(_MAX_BYTES, quarter))


def text_bytes(text: str) -> int:
    """Compute the size of a text in bytes, as the kernel counts it."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogateescape"))


def too_long(what: str, reason: str) -> ConfigError:
    """Create the error for a text that exceeds the kernel's limit; the pod's specification must change."""
    return ConfigError(f"{what[:100]}: argument list too long: {reason}", permanent=True)


def expand(
    text: str, variables: Mapping[str, str], *, what: str = "text", limit: int = STRING_BYTES - 1
) -> str:
    """Replace ``$(NAME)`` by its value; ``$$`` is a dollar, and an unknown name is left unchanged.

    Used for ``value``, ``command`` and ``args``.

    Raises:
        ConfigError: The result would have more than ``limit`` bytes.

    Example:
        >>> expand("$(A) $$(A) $(B) $A", {"A": "1"})
        '1 $(A) $(B) $A'
    """
    if "$" not in text:
        return text
    return expand_with(text, lambda name: variables.get(name, f"$({name})"), what=what, limit=limit)


def expand_with(text: str, value: Callable[[str], str], *, what: str, limit: int) -> str:
    """Replace ``$(NAME)`` by the result of a function."""
    end = text.rfind(")") + 1
    pieces, remaining, before = [], limit, 0
    for match in _REFERENCE.finditer(text, 0, end):
        name = match[1]
        for piece in (text[before : match.start()], "$" if name is None else value(name)):
            pieces.append(piece)
            remaining -= text_bytes(piece)
        before = match.end()
        if remaining < 0:
            break
    else:
        pieces.append(text[before:end] + text[end:].replace("$$", "$"))
        remaining -= text_bytes(pieces[-1])
    if remaining < 0:
        raise too_long(what, f"it expands to more than {limit} bytes")
    return "".join(pieces)


def expand_words(
    words: Iterable[str], variables: Mapping[str, str], space: ArgumentSpace, *, what: str
) -> list[str]:
    """Expand the words of a command, and count them against the limit."""
    expanded = []
    for word in words:
        expanded.append(expand(word, variables, what=what))
        space.add(what, expanded[-1])
    return expanded


def subpath(mount: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """Return the path inside the volume that a mount sets by ``subPath`` or ``subPathExpr``."""
    path = mount.get("subPath") or ""
    if expression := mount.get("subPathExpr"):
        missing = set()

        def value(name: str) -> str:
            if not variables.get(name):
                missing.add(name)
            return variables.get(name, "")

        what = f'subPathExpr of volumeMount "{mount.get("name", "")}"'
        path = expand_with(expression, value, what=what, limit=PATH_BYTES - 1)
        if missing:
            raise ConfigError(f"missing value for {', '.join(sorted(missing))}")
    if path.startswith("/"):
        raise ConfigError(f"error SubPath `{path}` must not be an absolute path")
    if ".." in path.split("/"):
        raise ConfigError(f"unable to provision SubPath `{path}`: must not contain '..'")
    return path
