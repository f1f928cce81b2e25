"""What a test says to a fake that is a process of its own: ``POST /_fake/<word>`` with its arguments as JSON.

The words are the methods of `FakeGoogle`; an error is ``{"code": …, "message": …, "reason": …}``, one of an
operation has a ``condition`` besides.
"""

from dataclasses import asdict

from .api_errors import ApiError, OperationFailure

WORDS = (
    "advance",
    "backing",
    "calls",
    "cut",
    "delay",
    "deny",
    "endpoints",
    "fail",
    "fired",
    "left",
    "clear_faults",
    "quota",
    "run",
)


def answer(fake, word: str, given: dict) -> object:
    """Do what a test says, and return what there is to tell.

    Raises:
        ApiError: The fake does not know the word.
    """
    if word not in WORDS:
        raise ApiError("NOT_FOUND", f"/_fake/ has {', '.join(WORDS)}; not {word}")
    if word == "calls":
        return [asdict(each) | {"at": each.at.isoformat()} for each in fake.calls]
    if word == "fired":
        return [asdict(each) | {"at": each.at.isoformat()} for each in fake.scheduler.fired]
    if word in ("endpoints", "left"):
        return dict(fake.endpoints) if word == "endpoints" else fake.left()
    if word == "fail":
        error = given.pop("error")
        given["error"] = (OperationFailure if "condition" in error else ApiError)(**error)
    act = getattr(fake.clock if word in ("advance", "run") else fake, word)
    act(**given)
    return {}
