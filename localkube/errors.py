"""``LocalClusterError``, for what a user can cause or fix, and ``ApiError``; other exceptions are bugs."""


class LocalClusterError(Exception):
    """A failure: what failed, on which object, and what to do next.

    Args:
        what: The failure, as a clause: ``the download was cut``.
        about: The object it happened to: a file, an address, a cluster's name.
        fix: The next thing to try.

    Example:
        >>> print(LocalClusterError("the port is taken", about="port 80", fix="choose another"))
        the port is taken (port 80): choose another
    """

    def __init__(self, what: str, *, about: str, fix: str) -> None:
        super().__init__(f"{what} ({about}): {fix}")
        self.what = what
        self.about = about
        self.fix = fix

    def as_dict(self) -> dict[str, str]:
        return {"what": self.what, "about": self.about, "fix": self.fix}


class Skipped(Exception):
    """One source of a program cannot be used; the message says why, and the next source is tried."""


class ApiError(Exception):
    """A response of the API server with an error status.

    Args:
        status: The HTTP status, such as 404; 0 without a response.
        reason: The API's machine-readable reason, such as ``NotFound``.
        message: The API server's own message.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
