"""A kubelet that is killed, wherever it is, loses nothing of what containers write and doubles nothing."""

import asyncio
import contextlib
import os
import random
import select
import signal
import time

import pytest

from localkube.kubelet.logs import container_log
from localkube.kubelet.logs.container_log import HEADER, LogJournal, LogLimits
from localkube.kubelet.logs.log_reader import LogFiles, LogOptions, read_log

SMALL = LogLimits(bytes=3000, files=1000)


class Container:
    """Pipes and a journal, as the runtime keeps them for kubelets that come and go."""

    def __init__(self, path):
        self.path = path
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.journal = os.memfd_create("journal")

    def kubelet(self, limits=SMALL):
        """Return the writer of a kubelet that has just started."""
        writer = LogFiles(limits).open(self.path)
        writer.resume(LogJournal(os.dup(self.journal)))
        return writer

    def log(self, **options):
        async def read():
            chosen = LogOptions(**options)
            return b"".join([block async for block in read_log(self.path, files=LogFiles(), options=chosen)])

        return asyncio.run(read())

    def close(self):
        for descriptor in (self.reader, self.writer, self.journal):
            os.close(descriptor)


@pytest.fixture
def container(tmp_path):
    new_container = Container(tmp_path / "logs" / "trainer" / "0.log")
    yield new_container
    new_container.close()


def killed_at(function):
    """Carry out a function in a process, which kills itself wherever that calls ``die``."""
    pid = os.fork()
    if not pid:
        try:
            function(lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dies_before_it_moves(writer, die):
    os.splice = die


def dies_before_it_writes(writer, die):
    container_log.os.write = die


def dies_within_a_write(writer, die):
    write = os.write

    def some(descriptor, data):
        write(descriptor, data[: len(data) // 2])
        die()

    container_log.os.write = some


def dies_after_the_write(writer, die):
    writer._clear_journal = die


def dies_before_the_rotation(writer, die):
    container_log.rotate = die


def dies_within_the_rotation(writer, die):
    rename = container_log.Path.rename

    def and_die(path, target):
        rename(path, target)
        die()

    container_log.Path.rename = and_die


AT_ROTATIONS = [dies_before_the_rotation, dies_within_the_rotation]
POINTS = [
    dies_before_it_moves,
    dies_before_it_writes,
    dies_within_a_write,
    dies_after_the_write,
    *AT_ROTATIONS,
]


def drain(writer, pipe):
    """Write what a pipe holds by now."""
    with contextlib.suppress(BlockingIOError):
        while writer.copy_pipe("stdout", pipe):
            pass


@pytest.mark.parametrize("die_at", POINTS)
@pytest.mark.parametrize("second", [b"second\n", b"no end", b"x" * 40_000 + b"\n", b"first\n"])
def test_a_kubelet_that_dies_loses_nothing_and_writes_nothing_twice(container, die_at, second):
    container.kubelet().feed("stdout", b"first\n")

    def kubelet(die):
        writer = container.kubelet()
        os.write(container.writer, second)
        die_at(writer, die)
        writer.copy_pipe("stdout", container.reader)

    rotates = len(second) > SMALL.bytes
    died = killed_at(kubelet) == -signal.SIGKILL
    assert died == (rotates or die_at not in AT_ROTATIONS)
    drain(container.kubelet(), container.reader)
    assert container.log() == b"first\n" + second
    os.write(container.writer, b"third\n")
    drain(container.kubelet(), container.reader)
    assert container.log() == b"first\n" + second + b"third\n"


def test_lines_of_a_killed_kubelet_are_rewritten_with_the_same_time(container):
    """Followers know by the times of lines what they have had."""

    def kubelet(die):
        writer = container.kubelet()
        os.write(container.writer, b"one\ntwo\n")
        dies_after_the_write(writer, die)
        writer.copy_pipe("stdout", container.reader)

    killed_at(kubelet)
    entries = container.log(timestamps=True)
    container.kubelet()
    assert container.log(timestamps=True) == entries
    assert entries.count(b"\n") == 2


def test_each_stream_keeps_its_name(container):
    def kubelet(die):
        writer = container.kubelet()
        os.write(container.writer, b"error\n")
        dies_within_a_write(writer, die)
        writer.copy_pipe("stderr", container.reader)

    killed_at(kubelet)
    container.kubelet()
    assert b" stderr F error\n" in container.path.read_bytes()


def test_a_journal_that_holds_a_head_alone_is_empty(container):
    """A kubelet dies after it has noted where it would write, and before the pipe is emptied."""
    os.pwrite(container.journal, b"\xff" * HEADER.size, 0)
    assert LogJournal(os.dup(container.journal)).unwritten() is None


@pytest.mark.parametrize("seed", range(5))
def test_kubelets_that_are_killed_at_any_moment_lose_nothing(container, seed):
    """As a machine under load does it: a SIGKILL wherever it happens to be, among rotations."""
    generator, lines = random.Random(seed), [b"line %d\n" % number for number in range(3000)]
    source = os.fork()
    if not source:
        os.set_blocking(container.writer, True)
        for start in range(0, len(lines), 70):
            os.write(container.writer, b"".join(lines[start : start + 70]))
            time.sleep(0.0005)
        os._exit(0)

    def follow():
        writer = container.kubelet()
        while select.select([container.reader], [], []):
            writer.copy_pipe("stdout", container.reader)

    kills = 0
    ended = False
    while not ended:
        kubelet = os.fork()
        if not kubelet:
            try:
                follow()
            finally:
                os._exit(1)
        time.sleep(generator.uniform(0.0005, 0.02))
        ended = os.waitpid(source, os.WNOHANG)[0] == source
        os.kill(kubelet, signal.SIGKILL)
        os.waitpid(kubelet, 0)
        kills += 1
    drain(container.kubelet(), container.reader)
    assert container.log() == b"".join(lines), f"{kills} kills"
