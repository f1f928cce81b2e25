"""A log that is taken up again and again gives each line once and in order, wherever it was cut."""

from hypothesis import example, given
from hypothesis import strategies as st

from kitlib.display.tracebacks import Line
from kitlib.k8s.logs import LogPosition

# Steps between the times of entries, in nanoseconds: the same time, the clock's jitter, a second or more.
STEPS = st.sampled_from([0, 0, 1, 1_000, 400_000_000, 1_000_000_000, 2_500_000_000])
# How a node leaves out what is older: each line of its own (the kubelet), or all before the first (ours).
FILTERS = st.sampled_from(["each", "first"])


def at(nanoseconds: int) -> str:
    """Return a time as Go writes it, without trailing zeros."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return f"2026-01-01T00:{seconds // 60:02d}:{seconds % 60:02d}{fraction}Z"


@st.composite
def logs(draw, steps=STEPS) -> list[list[Line]]:
    """Draw chunks of lines: those of a chunk were written at once, and texts may be equal."""
    chunks, now = [], 0
    for step in draw(st.lists(steps, min_size=1, max_size=25)):
        now += step
        texts = draw(st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=4))
        chunks.append([Line(at(now), text) for text in texts])
    return chunks


def answer(chunks: list[list[Line]], since: str, how: str) -> list[Line]:
    """Return what a node sends of the chunks that it has."""
    lines = [line for chunk in chunks for line in chunk]
    newer = [index for index, line in enumerate(lines) if not since or line.time[:19] >= since[:19]]
    if how == "first":
        return lines[newer[0] :] if newer else []
    return [lines[index] for index in newer]


@given(logs(), st.lists(st.integers(0, 100), max_size=12), FILTERS)
@example([[Line(at(0), "a")] * 4], [2], "each")
def test_cut_anywhere_a_log_comes_without_a_gap_and_without_a_double(chunks, cuts, how):
    place, got = LogPosition(), []
    for cut in [*cuts, None]:
        sent = answer(chunks, place.resume(), how)
        got += [line for line in sent[:cut] if place.is_new(line)]
    assert got == [line for chunk in chunks for line in chunk]


@given(logs(STEPS.filter(bool)), st.integers(0, 100), st.integers(0, 25), FILTERS)
@example([[Line(at(0), "a")] * 2, [Line(at(1), "b")] * 2], 3, 1, "each")
def test_rotation_hides_no_remaining_line(chunks, cut, lost, how):
    """Files end between writes: whole chunks go, those that were read and those that were not."""
    lines = [line for chunk in chunks for line in chunk]
    place = LogPosition()
    got = [line for line in answer(chunks, place.resume(), how)[:cut] if place.is_new(line)]
    got += [line for line in answer(chunks[lost:], place.resume(), how) if place.is_new(line)]
    assert got == lines[:cut] + lines[max(cut, sum(map(len, chunks[:lost]))) :]


@given(logs(), st.data())
def test_lines_of_two_streams_that_overtake_each_other_come_once(chunks, data):
    """The kubelet takes the time of a line of stderr before, and writes it after, one of stdout."""
    lines = [line for chunk in chunks for line in chunk]
    for index in data.draw(st.lists(st.integers(0, max(0, len(lines) - 2)), max_size=5)):
        pair = lines[index : index + 2]
        if len({line.time[:19] for line in pair}) == 1:
            lines[index : index + 2] = reversed(pair)
    cuts = data.draw(st.lists(st.integers(0, 100), max_size=8))
    how, place, got = data.draw(FILTERS), LogPosition(), []
    for cut in [*cuts, None]:
        sent = answer([[line] for line in lines], place.resume(), how)
        got += [line for line in sent[:cut] if place.is_new(line)]
    assert got == lines
