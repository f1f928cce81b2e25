"""Errors that a user can cause or fix.

Each says what failed, on which object, and what to try next, in that order. A notebook shows those lines in
place of a traceback; the cause is in ``__cause__``. A bug of the kit keeps its own type and traceback.
In a fix, calls and arguments are between backticks, as in Markdown: notebooks show them as they are, and a
terminal shows the commands and options that do the same.
"""

import re

CODE = re.compile(r"`([\w.]+[(=][^`]*)`")


class KitError(Exception):
    """An error in three parts: what failed, on which object, and what to do next.

    Args:
        what: The failure, as a clause: ``there is no such cluster``.
        about: The object it happened to: ``cluster "lab"``.
        fix: The next thing to try; calls and arguments of Python in it are between backticks.
        detail: Lines to read in full, such as a program's own traceback.

    Example:
        >>> print(KitError("there is no such cluster", about='cluster "lab"', fix="`kit.list_clusters()`"))
        there is no such cluster
          about: cluster "lab"
          try:   kit.list_clusters()
    """

    passing = False  # whether a retry may succeed

    def __init__(self, what: str, *, about: str, fix: str, detail: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.about = about
        self.fix = fix
        self.detail: str = detail.rstrip("\n")

    def __str__(self) -> str:
        parts = [self.what, f"  about: {_hang(self.about)}", f"  try:   {_hang(plain(self.fix))}"]
        if self.detail:
            parts.append("\n" + self.detail)
        return "\n".join(parts)

    def _render_traceback_(self) -> list[str]:
        """IPython prints these lines in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


def plain(fix: str) -> str:
    """Format a fix for a notebook: without the backticks around calls and arguments."""
    return CODE.sub(r"\1", fix)


def _hang(text: str) -> str:
    return text.replace("\n", "\n         ")


class BadInput(KitError, ValueError):
    """An argument is wrong; nothing was started."""


class ClusterNotFound(KitError, LookupError):
    """No cluster has this name."""


class ClusterBroken(KitError):
    """The cluster exists, but cannot be used in its state."""


class ClusterUnreachable(KitError):
    """The cluster's API server does not answer."""

    passing = True


class ProviderFailed(KitError):
    """A provider could not carry out a call."""


class InstallFailed(KitError):
    """An operator could not be installed or removed."""


class Rejected(KitError):
    """The API server refused a request; ``what`` is its message.

    Args:
        status: The HTTP status.
        reason: The ``reason`` of its Status: ``NotFound``, ``AlreadyExists``, ``Invalid`` …
    """

    def __init__(self, what: str, *, about: str, fix: str, status: int = 0, reason: str = "") -> None:
        super().__init__(what, about=about, fix=fix)
        self.status = status
        self.reason = reason
        self.passing: bool = status == 429 or status >= 500


class LaunchRejected(KitError):
    """A manifest was refused; the error shows the API server's message, and the line."""


class RunExists(KitError):
    """A run of this name exists in the cluster."""


class RunNotFound(KitError, LookupError):
    """No run has this name, or it was deleted."""


class RunFailed(KitError):
    """A run ended in failure; ``detail`` is the traceback of the rank that failed first."""

    def __init__(
        self, what: str, *, about: str, fix: str, detail: str = "", rank: int | str | None = None
    ) -> None:
        super().__init__(what, about=about, fix=fix, detail=detail)
        self.rank = rank


class NoContainerEngine(KitError):
    """There is no container engine to build an image."""


class CommandFailed(KitError):
    """A command that the kit ran for the user failed."""


class VolumeNotFound(KitError, LookupError):
    """No volume has this name."""


class VolumeInUse(KitError):
    """Pods have the volume mounted; ``what`` names them."""


class FileMissing(KitError, LookupError):
    """A volume has no file of this name."""


class TransferFailed(KitError):
    """Files could not be copied to or from a volume; no partial files remain."""


class VolumeFull(TransferFailed):
    """A volume has no space for an upload."""


class DatasetFailed(KitError):
    """A dataset could not be prepared; no partial files remain."""


class WaitTimeout(KitError, TimeoutError):
    """A wait was longer than its timeout; ``what`` has the last state seen."""


class NotConfirmed(KitError):
    """A cost, or something that cannot be undone, was not confirmed; nothing was started."""


class PreflightFailed(KitError):
    """A cluster at a cloud cannot be created; nothing was created or charged."""


class Interrupted(KitError, KeyboardInterrupt):
    """The user interrupted a wait; the awaited operation continues."""
