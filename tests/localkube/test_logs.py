"""What a container writes comes back byte for byte, whole or from the end, now or as it grows."""

import asyncio
import contextlib
import os
import random
import re

import pytest

from localkube.kubelet.logs.container_log import LONGEST, LogLimits, parse_timestamp, segments, timestamp
from localkube.kubelet.logs.log_reader import LogFiles, LogOptions, read_log

SECOND = 1_000_000_000
AWKWARD = (
    b"plain\n\xff\xfe invalid\n\x00nul\x00\n\n  spaces  \r\nprogress 1\rprogress 2\r"
    + b"x" * 40_000
    + b"\nlast, no end"
)


async def text_of(path, files, **options) -> bytes:
    return b"".join([block async for block in read_log(path, files=files, options=LogOptions(**options))])


def read(path, files=None, **options) -> bytes:
    return asyncio.run(text_of(path, files or LogFiles(), **options))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "logs" / "trainer" / "0.log"


@pytest.mark.parametrize("size", [1, 7, 4096, 65536])
def test_output_is_the_same_however_it_was_cut_by_the_pipe(path, size):
    files = LogFiles()
    writer = files.open(path)
    for start in range(0, len(AWKWARD), size):
        writer.feed("stdout", AWKWARD[start : start + size])
    writer.close()
    assert read(path) == AWKWARD


def test_every_entry_has_the_format_of_the_container_runtime_interface(path):
    writer = LogFiles().open(path)
    writer.feed("stdout", b"a\nb" + b"y" * (3 * LONGEST))
    writer.feed("stderr", b"c\n")
    for entry in path.read_bytes().split(b"\n")[:-1]:
        assert re.fullmatch(
            rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) [FP] .*", entry, re.DOTALL
        )
        assert len(entry.split(b" ", 3)[3]) <= LONGEST


@pytest.mark.parametrize("seed", range(20))
def test_lines_of_about_the_longest_length_come_back_however_they_lie(path, seed):
    chosen = random.Random(seed)
    lengths = [chosen.choice([0, 1, 100, LONGEST - 1, LONGEST, LONGEST + 1]) for _ in range(20)]
    text = b"".join(b"z" * length + b"\n" for length in lengths)
    LogFiles().open(path).feed("stdout", text)
    entries = path.read_bytes().split(b"\n")[:-1]
    assert max(len(entry.split(b" ", 3)[3]) for entry in entries) <= LONGEST
    assert len(entries) == len(lengths) + sum(length > LONGEST for length in lengths)
    assert read(path) == text


def test_a_part_of_a_line_is_on_disk_before_the_line_ends(path):
    writer = LogFiles().open(path)
    writer.feed("stdout", b"50% ")
    assert path.read_bytes().endswith(b" stdout P 50% \n")
    assert read(path) == b"50% "
    writer.feed("stdout", b"done\n")
    assert read(path) == b"50% done\n"


def test_only_the_owner_can_read_a_log(path):
    LogFiles().open(path).feed("stdout", b"a")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("torn", [b"2026-01-01T00:00:00.0000", b"2026-01-01T00:00:00.000000000Z stdout F to"])
def test_an_entry_torn_by_a_killed_kubelet_does_not_spoil_the_next(path, torn):
    LogFiles().open(path).feed("stdout", b"whole\n")
    with path.open("ab") as file:
        file.write(torn)
    LogFiles().open(path).feed("stdout", b"after\n")
    assert read(path) == b"whole\nafter\n"


@contextlib.contextmanager
def full(writer):
    """Make every write of a writer fail as on a full disk."""
    writer.feed("stdout", b"")
    descriptor, device = os.dup(writer._file), os.open("/dev/full", os.O_WRONLY)
    os.dup2(device, writer._file)
    yield
    os.dup2(descriptor, writer._file)
    os.close(descriptor)
    os.close(device)


def test_a_full_disk_loses_output_says_so_once_and_does_not_raise(path, caplog):
    files, lost = LogFiles(), []
    files.on_loss = lambda *loss: lost.append(loss)
    writer = files.open(path)
    writer.feed("stdout", b"before\n")
    with full(writer):
        writer.feed("stdout", b"lost\n")
        writer.feed("stdout", b"lost\n")
    writer.feed("stdout", b"after\n")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert [(place, error.strerror) for place, error in lost] == [(path, "No space left on device")]
    assert read(path) == b"before\nafter\n"


def reference_tail(text: bytes, lines: int) -> bytes:
    pieces = text.splitlines(keepends=True) if b"\r" not in text else re.findall(rb"[^\n]*\n|[^\n]+$", text)
    return b"".join(pieces[len(pieces) - lines :]) if lines < len(pieces) else text


@pytest.mark.parametrize("seed", range(30))
def test_tail_gives_what_the_program_tail_gives(path, seed):
    generator = random.Random(seed)
    writer = LogFiles().open(path)
    written = b""
    for _ in range(generator.randint(1, 60)):
        piece = bytes(generator.choice(b"ab\n\n") for _ in range(generator.randint(1, 9))) * generator.choice(
            [1, 1, 1, 5000]
        )
        writer.feed("stdout", piece)
        written += piece
    for lines in (0, 1, 2, 3, 10, 1000, 10**6):
        assert read(path, tail_lines=lines) == reference_tail(written, lines), lines


def written_each_second(path, *pieces):
    """Write pieces one second after the other."""
    times = iter(range(SECOND, 10 * SECOND, SECOND))
    writer = LogFiles().open(path)
    writer._clock = lambda: next(times)
    for piece in pieces:
        writer.feed("stdout", piece)


def test_timestamps_stand_once_at_the_beginning_of_a_line(path):
    written_each_second(path, b"a", b"b\nc\n", b"d")
    lines = read(path, timestamps=True).split(b"\n")
    assert lines == [
        b"1970-01-01T00:00:0%d.000000000Z %s" % line for line in [(1, b"ab"), (2, b"c"), (3, b"d")]
    ]


def test_since_leaves_out_what_is_older(path):
    written_each_second(path, b"1\n", b"2\n", b"3\n")
    assert read(path, since=timestamp(2 * SECOND)) == b"2\n3\n"
    assert read(path, since=parse_timestamp("1970-01-01T01:00:03+01:00")) == b"3\n"


def test_a_line_that_began_before_the_time_that_is_asked_for_is_left_out_whole(path):
    """Who takes a log up again would otherwise get the end of a line for a line."""
    written_each_second(path, b"old", b"er", b" line\nnew", b"er line\n")
    assert read(path, since=timestamp(2 * SECOND)) == b"newer line\n"


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(ValueError, match="no time zone"):
        parse_timestamp("2026-01-01T00:00:00")


def test_without_follow_a_busy_log_ends_where_it_was_when_asked(path):
    async def scenario():
        files = LogFiles()
        writer = files.open(path)
        writer.feed("stdout", b"before\n")
        reading = read_log(path, files=files, options=LogOptions())
        blocks = [await anext(reading)]
        writer.feed("stdout", b"after\n")
        blocks += [block async for block in reading]
        return b"".join(blocks)

    assert asyncio.run(scenario()) == b"before\n"


def test_a_follower_sees_each_write_and_ends_with_the_container(path):
    async def scenario():
        files = LogFiles()
        writer = files.open(path)
        blocks = []

        async def follow():
            async for block in read_log(path, files=files, options=LogOptions(follow=True, tail_lines=0)):
                blocks.append(block)

        writer.feed("stdout", b"old\n")
        task = asyncio.create_task(follow())
        for piece in (b"a", b"b\n", b"c"):
            await asyncio.sleep(0.01)
            writer.feed("stdout", piece)
        await asyncio.sleep(0.01)
        writer.feed("stderr", b"at the very end")
        writer.close()
        await asyncio.wait_for(task, 30)
        return blocks

    assert asyncio.run(scenario()) == [b"a", b"b\n", b"c", b"at the very end"]


SMALL = LogLimits(bytes=2000, files=3)


def numbers(count, *, start=0):
    return b"".join(b"%05d\n" % number for number in range(start, start + count))


def test_a_log_goes_on_in_new_files_and_the_oldest_go(path):
    writer = LogFiles(SMALL).open(path)
    for number in range(1000):
        writer.feed("stdout", b"%05d\n" % number)
        assert len(segments(path)) <= SMALL.files
    assert sum(name.stat().st_size for name in segments(path)) <= SMALL.files * (SMALL.bytes + 100)
    content = read(path)
    assert numbers(1000).endswith(content)
    assert len(content) > 2 * 2000 * 6 / 60


def test_a_line_stays_in_one_file_unless_it_never_ends(path):
    writer = LogFiles(SMALL).open(path)
    writer.feed("stdout", b"x" * 3000)
    assert len(segments(path)) == 1
    writer.feed("stdout", b"y\n")
    writer.feed("stdout", b"z\n")
    assert [name.name for name in segments(path)] == ["0.log.1", "0.log"]
    assert read(path) == b"x" * 3000 + b"y\nz\n"
    for _ in range(1000):
        writer.feed("stderr", b"50%\r" * 10)
    assert sum(name.stat().st_size for name in segments(path)) <= 2 * SMALL.files * (SMALL.bytes + 100)


@pytest.mark.parametrize("lines", [0, 1, 20, 50, 80, 10_000])
def test_tail_reaches_back_into_earlier_files(path, lines):
    writer = LogFiles(LogLimits(bytes=2000, files=100)).open(path)
    for number in range(300):
        writer.feed("stdout", b"%05d\n" % number)
    assert len(segments(path)) > 5
    assert read(path, tail_lines=lines) == reference_tail(numbers(300), lines)


def test_a_follower_that_is_left_behind_goes_on_with_what_is_kept(path):
    async def scenario():
        files = LogFiles(SMALL)
        writer = files.open(path)
        writer.feed("stdout", numbers(1))
        reading = read_log(path, files=files, options=LogOptions(follow=True))
        blocks = [await anext(reading)]
        for number in range(1, 1000):
            writer.feed("stdout", b"%05d\n" % number)
        writer.close()
        return blocks + [block async for block in reading]

    text = b"".join(asyncio.run(scenario()))
    assert text.startswith(numbers(2)) and text.endswith(numbers(60, start=940))


@pytest.mark.parametrize("between", [1, 30, 70])
def test_a_follower_gets_every_byte_once_whether_it_keeps_up_or_not(path, between):
    """Of 40 KB each, 30 pieces are more than is kept for one that does not take them, and fill many files."""

    async def scenario():
        files = LogFiles(LogLimits(bytes=100_000, files=100))
        writer = files.open(path)
        following = asyncio.create_task(text_of(path, files, follow=True))
        for number in range(140):
            writer.feed("stdout", (b"%07d " % number) * 5000 + (b"\n" if number % 2 else b""))
            if number % between == 0:
                await asyncio.sleep(0.002)
        writer.close()
        return await asyncio.wait_for(following, 20)

    written = b"".join((b"%07d " % number) * 5000 + (b"\n" if number % 2 else b"") for number in range(140))
    assert asyncio.run(scenario()) == written


def test_a_follower_goes_on_after_what_a_full_disk_has_lost(path):
    async def scenario():
        files = LogFiles()
        writer = files.open(path)
        following = asyncio.create_task(text_of(path, files, follow=True))
        for piece in (b"before\n", b"lost\n", b"after\n", b"later\n"):
            await asyncio.sleep(0.002)
            with full(writer) if piece == b"lost\n" else contextlib.nullcontext():
                writer.feed("stdout", piece)
        writer.close()
        return await asyncio.wait_for(following, 20)

    assert asyncio.run(scenario()) == b"before\nafter\nlater\n"


def test_of_a_containers_runs_the_last_two_are_kept(path):
    files = LogFiles(SMALL)
    for run in range(4):
        writer = files.open(path.with_name(f"{run}.log"))
        for number in range(100):
            writer.feed("stdout", b"%05d\n" % number)
        writer.close()
    assert {name.name.split(".")[0] for name in path.parent.iterdir()} == {"2", "3"}


def test_a_continued_log_is_rotated_where_the_kubelet_before_would_have_done_it(path):
    LogFiles(SMALL).open(path).feed("stdout", b"x" * 1900 + b"\n")
    writer = LogFiles(SMALL).open(path)
    writer.feed("stdout", b"y" * 100 + b"\n")
    assert [name.name for name in segments(path)] == ["0.log.1"]
