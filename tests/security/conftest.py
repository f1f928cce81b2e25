"""A cluster of this user and one of an unprivileged user, which the tests of what pods do to them share."""

import os
import resource

import pytest

from localkube.runtime.syscalls import CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC, mount, unshare

from ..node.clusters import Pods, running_cluster, state_home
from ..node.restrictions import NOBODY
from ..node.unprivileged import enter_as_nobody, nobodys
from .users import USERS


@pytest.fixture(scope="package", params=USERS)
def cluster(request):
    """Yield a cluster whose home has a second mount, at ``second``, and neither is in a place like /tmp.

    It is created with as few descriptors as most shells allow.
    """
    with state_home(request.config.cache.mkdir("isolation")) as home:
        second = home.with_name(home.name + "-second")
        second.mkdir()
        os.chown(home, request.param, request.param)
        home.chmod(0o755)
        enter = enter_as_nobody(home) if request.param == NOBODY != os.getuid() else lambda: None
        try:
            enter = _twice(home, second, enter)
            with running_cluster("--nodes", "1", home=home, enter=enter, **nobodys(home)) as running:
                running.second = second
                yield running
        finally:
            second.rmdir()


def _twice(home, second, enter):
    def both():
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        if not os.getuid():
            unshare(CLONE_NEWNS)
            mount(None, "/", None, MS_REC | MS_PRIVATE)
            mount(str(home), str(second), None, MS_BIND)
        enter()

    return both


@pytest.fixture
def pods(cluster):
    with Pods(cluster) as cluster_pods:
        yield cluster_pods
