"""Do something as this user, or as another user of the machine."""

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..node.clusters import RunningCluster, running_cluster, state_home
from ..node.network_namespace import become
from ..node.restrictions import NOBODY
from ..node.unprivileged import enter_as_nobody, nobodys

USERS = [
    # Most users are not root, and where this user is root, nobody is one of them.
    pytest.param(os.getuid(), id="as this user", marks=[] if os.getuid() else [pytest.mark.slow]),
    pytest.param(
        NOBODY,
        id="as nobody",
        marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user"),
    ),
]


def as_user(user: int, act: Callable[[], Any]) -> None:
    """Call a function in a process of that user; what it raises is raised here, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become(user)
            act()
        except BaseException:  # noqa: BLE001 - the parent raises it
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    assert not text, text


@contextmanager
def folder_of(user: int) -> Iterator[Path]:
    """Yield a new directory of that user, and remove what is left of it."""
    path = Path(tempfile.mkdtemp(prefix="security-"))
    os.chown(path, user, user if user else os.getgid())
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def cluster_of(user: int, *shape: str, cache: pytest.Cache) -> Iterator[RunningCluster]:
    """Yield a new cluster of that user, with one node."""
    if user == os.getuid():
        with (
            state_home(cache.mkdir("security")) as home,
            running_cluster("--nodes", "1", *shape, home=home) as running,
        ):
            yield running
        return
    with folder_of(user) as home:
        enter = enter_as_nobody(home)
        with running_cluster("--nodes", "1", *shape, home=home, enter=enter, **nobodys(home)) as running:
            yield running
