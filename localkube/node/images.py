"""What stands in for a container image: the host's file system, and for known images their entry point.

Images are not pulled. A container that names its command runs it; one that does not needs an entry in the
table, because nothing else knows what the image would have run.
"""

from dataclasses import dataclass

# The first process of a container hears only the signals that it asks for.
FOREVER = ("sh", "-c", "trap 'exit 0' INT TERM; sleep infinity & wait")


@dataclass(frozen=True)
class StandIn:
    """``entrypoint`` and ``arguments`` are the image's own; ``known`` is False for what the table lacks."""

    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    known: bool = True


TABLE = {
    "alpine": StandIn(arguments=("sh",)),
    "busybox": StandIn(arguments=("sh",)),
    "debian": StandIn(arguments=("bash",)),
    "pause": StandIn(entrypoint=FOREVER),
    "python": StandIn(arguments=("python",)),
    "pytorch": StandIn(arguments=("bash",)),
    "trainer": StandIn(arguments=("bash",)),
    "ubuntu": StandIn(arguments=("bash",)),
}
UNKNOWN = StandIn(known=False)


def stand_in(image: str) -> StandIn:
    """Return what stands in for ``image``.

    Example:
        >>> stand_in("registry.example/library/busybox:1.36").arguments
        ('sh',)
    """
    name = image.split("@", 1)[0].rsplit("/", 1)[-1].split(":", 1)[0]
    return TABLE.get(name, UNKNOWN)


def command_line(container: dict) -> list[str] | None:
    """Return what to run, as Kubernetes combines it with the image's entry point; None when nobody knows.

    Source: https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/
    """
    image = stand_in(container["image"])
    command, arguments = container.get("command"), container.get("args")
    if command:
        line = [*command, *(arguments or [])]
    elif arguments:
        line = [*image.entrypoint, *arguments] if image.known else None
    else:
        line = [*image.entrypoint, *image.arguments]
    return line or None
