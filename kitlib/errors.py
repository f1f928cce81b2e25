"""The errors that the kit raises for things a user can cause or mend.

Each says what failed, on which object, and what to try next, in that order. A notebook shows those lines in
place of a traceback (the cause stays reachable through ``__cause__``). Bugs of the kit are not here: they
keep theirs.
"""


class KitError(Exception):
    """Say what failed, on which object, and what to do next.

    Args:
        what: The failure, as a clause: ``there is no such cluster``.
        about: The object it happened to: ``cluster "lab"``.
        fix: The next thing to try.
        detail: Lines to read in full, such as a program's own traceback.

    Example:
        >>> print(KitError("there is no such cluster", about='cluster "lab"', fix="kit.list_clusters()"))
        there is no such cluster
          about: cluster "lab"
          try:   kit.list_clusters()
    """

    passing = False  # whether waiting a little may be all that is needed

    def __init__(self, what: str, *, about: str, fix: str, detail: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.about = about
        self.fix = fix
        self.detail = detail.rstrip("\n")

    def __str__(self) -> str:
        parts = [self.what, f"  about: {_hang(self.about)}", f"  try:   {_hang(self.fix)}"]
        if self.detail:
            parts.append("\n" + self.detail)
        return "\n".join(parts)

    def _render_traceback_(self) -> list[str]:
        """Return what IPython prints in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


def _hang(text: str) -> str:
    return text.replace("\n", "\n         ")


class BadInput(KitError, ValueError):
    """An argument is wrong; nothing was started."""


class ClusterNotFound(KitError, LookupError):
    """No cluster has this name."""


class ClusterBroken(KitError):
    """The cluster exists, and cannot be used as it is."""


class ClusterUnreachable(KitError):
    """The cluster's API server does not answer."""

    passing = True


class ProviderFailed(KitError):
    """Whoever makes clusters could not do what was asked of it."""


class InstallFailed(KitError):
    """An operator could not be installed or removed."""


class Rejected(KitError):
    """The API server refused a request; ``what`` has its own words.

    Args:
        status: The HTTP status.
        reason: Kubernetes's word for it: ``NotFound``, ``AlreadyExists``, ``Invalid`` …
    """

    def __init__(self, what: str, *, about: str, fix: str, status: int = 0, reason: str = "") -> None:
        super().__init__(what, about=about, fix=fix)
        self.status = status
        self.reason = reason
        self.passing = status == 429 or status >= 500


class LaunchRejected(KitError):
    """A manifest was refused; the error shows the API server's words, and the line."""


class RunExists(KitError):
    """A run of this name is in the cluster already."""


class RunNotFound(KitError, LookupError):
    """No run has this name, or it was deleted."""


class RunFailed(KitError):
    """A run ended in failure; ``detail`` is the traceback of the rank that failed first."""

    def __init__(self, what: str, *, about: str, fix: str, detail: str = "", rank: int | None = None) -> None:
        super().__init__(what, about=about, fix=fix, detail=detail)
        self.rank = rank


class NoContainerEngine(KitError):
    """An image should be built, and nothing here can build one."""


class CommandFailed(KitError):
    """A command that the kit ran for the user ended with another status than 0."""


class VolumeNotFound(KitError, LookupError):
    """No volume has this name."""


class VolumeInUse(KitError):
    """Pods have the volume mounted; ``what`` names them."""


class FileMissing(KitError, LookupError):
    """There is nothing of this name on a volume."""


class TransferFailed(KitError):
    """Files could not be copied to or from a volume; nothing half-made is left."""


class VolumeFull(TransferFailed):
    """There is no room on a volume for what was sent."""


class DatasetFailed(KitError):
    """A dataset could not be prepared; nothing half-made is left."""


class WaitTimeout(KitError, TimeoutError):
    """What was waited for did not happen in time; ``what`` has the last state seen."""


class NotConfirmed(KitError):
    """What costs money, or cannot be undone, was not agreed to; nothing was started."""


class PreflightFailed(KitError):
    """Something stands in the way of a cluster at a cloud; nothing was made, and nothing costs."""


class Interrupted(KitError, KeyboardInterrupt):
    """The user stopped a wait; what was waited for goes on, untouched."""
