"""Names and labels: valid and unique names, and the labels of the kit's objects."""

import getpass
import os
import re
import secrets
from datetime import UTC, datetime, timedelta

from kitlib import config
from kitlib.errors import BadInput

KIT = "trainyard/kit"
RUN = "trainyard/run"
WORKER = "trainyard/worker"  # the number of a plain pod among the workers of its run
ROLE = "trainyard/role"  # of a plain pod in its run: worker, or store, master …
REPLICA = "trainyard/replica"  # "ps-1": of a pod that a role and a number identify, not a rank
VOLUME = "trainyard/volume"
WORKSHOP = "trainyard/workshop"
OWNER = "trainyard/owner"
EXPIRES = "trainyard/expires"
RANKS_ALONE = "trainyard/ranks-alone"  # on a run's main object: why its ranks will not meet
EVALUATES = "evaluates"  # its value where ranks need not meet
DECLARED_GPUS = "trainyard/declared-gpus"  # a label of nodes whose GPUs are simulated
IDLE_GPUS = "trainyard/idle-gpus"  # what is to become of a run that does not use its GPUs
NOTEBOOK = "trainyard/notebook"  # on what notebooks create by kubectl
JOB_NAME = "batch.kubernetes.io/job-name"
OPERATORS_JOB_NAME = "training.kubeflow.org/job-name"  # of PyTorchJobs and of ElasticJobs

MAX_RUN_NAME = 52  # leaves room in 63 characters for the pods' "-<index>-<suffix>"
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_UNAMBIGUOUS = "bcdfghjkmnpqrstvwxz2456789"  # no vowels, and no pair of characters that look alike


def validate_name(name: object, *, kind: str, longest: int = 63) -> str:
    """Check that a name is a DNS label (RFC 1123), as Kubernetes requires; the error proposes one that is."""
    if not isinstance(name, str):
        what = f"a {kind}'s name is text, not {type(name).__name__}"
        raise BadInput(what, about=repr(name), fix=f'`name="{kind}-1"`')
    if _DNS_LABEL.fullmatch(name) and len(name) <= longest:
        return name
    raise BadInput(
        f"a {kind}'s name has only a-z, 0-9 and -, begins and ends with a letter or digit, "
        f"and is at most {longest} characters long",
        about=f'name "{name}"',
        fix=f'`name="{slug(name, longest) or kind}"`',
    )


def slug(text: str, longest: int = 63) -> str:
    """Convert text to a DNS label; empty if nothing of it can stay."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:longest].rstrip("-")


def unique(stem: str) -> str:
    """Make a run name that begins with ``stem`` and is, in practice, unique."""
    suffix = "".join(secrets.choice(_UNAMBIGUOUS) for _ in range(5))
    return f"{slug(stem, MAX_RUN_NAME - 6) or 'run'}-{suffix}"


def labels(
    *,
    run: str | None = None,
    volume: str | None = None,
    workshop: str | None = None,
    lifetime: timedelta = timedelta(hours=24),
    now: datetime | None = None,
) -> dict[str, str]:
    """Make the labels of one run or volume, by which alone the kit finds and deletes its objects.

    The workshop is by default that of the settings.
    """
    settings = config.read()
    expires = (now or datetime.now(UTC)) + lifetime
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"user-{os.getuid()}"
    return {
        **settings.labels,
        KIT: "true",
        **({RUN: run} if run is not None else {}),
        **({VOLUME: volume} if volume is not None else {}),
        WORKSHOP: slug(settings.workshop if workshop is None else workshop) or "none",
        OWNER: slug(user) or "unknown",
        EXPIRES: expires.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ"),
    }
