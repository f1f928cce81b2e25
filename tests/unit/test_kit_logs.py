"""A pod's output, followed over streams that end too early, as they do when a node's kubelet dies."""

import io

import pytest
import urllib3

from kitlib.display.tracebacks import Line
from kitlib.errors import Rejected
from kitlib.k8s.client import Stream
from kitlib.k8s.logs import PodLogFollower
from kitlib.runs.logs import LogStream

POD = {"metadata": {"name": "worker-0"}, "spec": {"containers": [{"name": "trainer"}]}}
WRITTEN = b"".join(b"2026-01-01T00:00:0%d.5Z line %d\n" % (second, second) for second in range(4))


class Looks:
    """What the API answers at each look at a log, and whether the pod has ended by then."""

    def __init__(self, *answers: tuple[bytes, bool]) -> None:
        self.answers, self.over = list(answers), False

    def path(self, kind: str, name: str) -> str:
        return f"/{kind}/{name}"

    def ended(self) -> bool:
        self.over = self.answers[0][1]
        return self.over

    def stream(self, path: str, *, about: str, params: dict) -> Stream:
        since = params["sinceTime"].removesuffix("Z")
        lines = self.answers.pop(0)[0].splitlines(keepends=True)
        body = b"".join(line for line in lines if line[:19].decode() >= since or len(line) < 19)
        return Stream(urllib3.HTTPResponse(io.BytesIO(body), preload_content=False))


TORN = [(WRITTEN[: 58 + place], WRITTEN) for place in (0, 5, 21, 22, 25, 28)]


@pytest.mark.parametrize(("first", "last"), [*TORN, (WRITTEN[:-1], WRITTEN[:-1])])
def test_a_line_that_the_death_of_a_kubelet_or_the_end_cut_comes_whole_and_once(first, last):
    looks = Looks((first, False), (last, first == last), (last, True))
    got = [line.text for line in PodLogFollower(looks, POD, looks.ended)]
    assert got == [f"line {number}" for number in range(4)]


def test_a_kubelet_that_does_not_know_its_pods_yet_is_asked_again():
    """One that has just started answers 404 for a pod that runs; so does one whose pod is gone."""

    class Starting(Looks):
        refusals = 2

        def stream(self, path: str, *, about: str, params: dict) -> Stream:
            if self.refusals:
                self.refusals -= 1
                raise Rejected("the server could not find it", about=about, fix="", status=404)
            return super().stream(path, about=about, params=params)

    looks = Starting((WRITTEN, False), (WRITTEN, True), (WRITTEN, True))
    assert len(list(PodLogFollower(looks, POD, looks.ended))) == 4
    ended = Starting((b"", True))
    assert list(PodLogFollower(ended, POD, ended.ended)) == []


def test_the_head_of_a_stream_ends_following_with_its_last_line(monkeypatch):
    ends = []

    def follow(stream):
        try:
            while True:
                yield 0, Line("", "a line")
        finally:
            ends.append(stream)

    monkeypatch.setattr(LogStream, "_follow", follow)
    stream = LogStream(None, None, timeout=1)
    assert [*stream.head(2)] == ["[rank 0] a line"] * 2
    assert len(ends) == 1 and stream.limit is None
