"""At which pace events are told."""

from localkube.kubelet.events import RateLimiter


def test_a_burst_goes_at_once_and_the_rest_at_a_pace():
    now = [0.0]
    pace = RateLimiter(3, 10, clock=lambda: now[0])
    waits = []
    for _ in range(6):
        waits.append(round(pace.wait(), 3))
        now[0] += waits[-1]
    assert waits == [0, 0, 0, 0.1, 0.1, 0.1]


def test_after_a_rest_there_is_room_for_a_burst_and_no_more():
    now = [0.0]
    pace = RateLimiter(3, 10, clock=lambda: now[0])
    for _ in range(3):
        pace.wait()
    now[0] += 3600
    assert [round(pace.wait(), 3) for _ in range(4)] == [0, 0, 0, 0.1]
