"""Following an image's build at a cloud to its end, and stopping it where it is not followed any more."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clouds.reconciler import reconcile
from clouds.reconciler.clock import Clock
from clouds.reconciler.resource import Resource
from clouds.reconciler.snapshot import Snapshot
from kitlib.errors import Interrupted, KitError


@dataclass(frozen=True)
class BuildSource:
    """What a build is made from, at the cloud as long as it runs.

    Attributes:
        send: Puts it there.
        drop: Deletes it.
    """

    send: Callable[[], object]
    drop: Callable[[], object]


def follow(
    build: Resource,
    before: Sequence[Resource],
    source: BuildSource,
    *,
    service: str,
    stopped: str,
    about: str,
    report: Callable[[str], None],
    clock: Clock | None,
) -> None:
    """Have an image built, whatever comes of it; no build and no source stays behind.

    Args:
        build: Ready when it has ended.
        before: What it needs.
        source: What it is made from.
        service: Who builds: ``CodeBuild``.
        stopped: What became of a build that was begun and is given up: ``was cancelled``.
        about: The object, for errors.
        report: Told what the build is at.
        clock: Of the waiting; None is the one on the wall.

    Raises:
        Interrupted: The user stopped it; so was the build, or else the error says that it may go on.
    """

    def shown(snapshot: Snapshot) -> None:
        report(next((each.words for each in snapshot.steps if each.name == build.name), "") or service)

    try:
        report("sending what it is built from")
        source.send()
        reconcile.bring_up(
            [*before, build], title=about, resume="the same call again", report=shown, clock=clock
        )
    except BaseException as error:
        became = f"what {service} had begun {stopped}"
        try:
            build.delete()
        except KitError as other:
            became = f"what {service} had begun may go on, and cost: {other.what}"
            if isinstance(error, KitError):
                error.detail = "\n".join(filter(None, (error.detail, became)))
        if isinstance(error, Interrupted | KeyboardInterrupt):
            words, fix = f"stopped; {became}", "the same call builds it anew"
            raise Interrupted(words, about=about, fix=fix) from error
        raise
    finally:
        with contextlib.suppress(KitError):  # else it goes with the bucket
            source.drop()
