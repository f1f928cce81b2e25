"""What the kernel counts for each user: a pod that takes all it can have leaves some to others."""

import os
import shutil
from pathlib import Path

import pytest

from localkube.runtime.user_namespace import MAX_PROCESSES, SHARE

from ..node.clusters import Pods, pod, python, running_cluster, state_home
from ..node.restrictions import NOBODY
from ..node.unprivileged import SUBORDINATE, enter_as_nobody, nobodys, with_subordinate_ids
from .users import as_user

pytestmark = pytest.mark.namespaces
COUNT = """
import ctypes, os, select, signal, sys, threading, time
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})

def watch():
    return libc.inotify_init1(0) >= 0

def signal_itself():
    return libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0

def queue():
    name = f"/queue-{os.getpid()}-{len(os.listdir('/proc/self/fd'))}".encode()
    one_message = (ctypes.c_long * 8)(0, 1, 8192)  # struct mq_attr
    made = libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, one_message) >= 0
    libc.mq_unlink(name)  # else it outlives the process, and counts for its user until a restart
    return made

def fork():
    try:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    except RuntimeError:
        return False
    return True

def pipe():
    try:
        return bool(os.pipe())
    except OSError:
        return False

polls = []

def poll():
    try:
        polls.append(select.epoll())
        polls[-1].register(0)
    except OSError as error:
        return isinstance(error, PermissionError)  # of a file, which cannot be watched
    return True

COUNTERS = watch, signal_itself, queue, fork, pipe, poll
"""
TAKE_ALL = (
    COUNT
    + """
threading.stack_size(32768)
for take in COUNTERS:
    while take():
        pass
print("taken", flush=True)
time.sleep(600)
"""
)
TAKE_ONE = COUNT + "print(*(take() for take in COUNTERS), flush=True)"


def others_have_some(pods):
    """Let one pod take all that it can have, and another and the cluster's user one of each."""
    pods.wait_for_line(pods.create(pod(main=python(TAKE_ALL))), "taken")
    assert pods.output(pod(main=python(TAKE_ONE))).split() == ["True"] * 6

    def take_one():
        names = {}
        exec(COUNT, names)  # in a fork: the interpreter here may not be executed by the other user
        assert [take() for take in names["COUNTERS"]] == [True] * 6

    as_user(pods.cluster.root.stat().st_uid, take_one)


def test_a_pod_has_at_most_so_many_processes_and_threads_without_control_groups_too(pods):
    script = COUNT + "threading.stack_size(32768)\ncount = sum(1 for _ in range(5000) if fork())\n"
    script += "print(count, flush=True)\nos._exit(0)"
    assert int(pods.output(pod(main=python(script)))) < MAX_PROCESSES


def test_a_pod_that_takes_all_that_the_kernel_counts_leaves_some_to_others(pods):
    others_have_some(pods)


@pytest.mark.slow
@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("newuidmap") is None or not all(path.exists() for path in SUBORDINATE),
    reason="root makes the cluster of another user, with newuidmap of Debian's package uidmap",
)
def test_a_pod_of_a_user_with_subordinate_ids_has_a_share_whatever_user_it_becomes():
    with state_home(Path("/tmp")) as home:
        os.chown(home, NOBODY, NOBODY)
        enter = with_subordinate_ids(home, enter_as_nobody(home))
        with running_cluster(home=home, enter=enter, **nobodys(home)) as cluster, Pods(cluster) as pods:
            script = COUNT + "count = 0\nfor user in range(1, 20):\n"
            script += "    os.seteuid(user)\n    while watch():\n        count += 1\n    os.seteuid(0)\n"
            most = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
            assert int(pods.output(pod(main=python(script + "print(count)")))) == most // SHARE
            others_have_some(pods)
