"""What the soak makes of the steps of a training job beside an attacker."""

import pytest
from soak.attacker import LEAST_SECONDS, compare, problems

STEADY = [(second, 20) for second in range(400)]


@pytest.mark.parametrize(
    ("counts", "lost"),
    [
        (STEADY, 0),
        ([(second, 20 - (second >= 200)) for second in range(400)], 0.05),
        ([(second, 20 - 5 * (second >= 200)) for second in range(400)], 0.25),
        ([(second, 20 - 20 * (second >= 200)) for second in range(400)], 1),
        # Stopped by a node that is off: that says nothing about an attacker.
        ([(second, 20 * (second % 4 > 0)) for second in range(400)], 0),
        ([(second, 20 - 20 * (200 <= second < 208)) for second in range(400)], 0),
    ],
)  # fmt: skip
def test_the_speed_that_an_attacker_took_is_seen_and_judged(counts, lost):
    figures = compare(counts, [(200.0, 400.0)])
    assert figures["lost"] == pytest.approx(lost)
    assert bool(problems(figures)) == (lost > 0.1)


def test_too_short_a_soak_judges_no_speed():
    figures = compare(STEADY[:LEAST_SECONDS], [(10.0, 40.0)])
    assert figures["lost"] is None
    assert not problems(figures)


def test_a_job_that_an_attacker_stops_is_seen_by_the_seconds_without_a_step():
    counts = [(second, 20 * (second < 200 or second % 2)) for second in range(400)]
    (problem,) = problems(compare(counts, [(200.0, 400.0)]))
    assert "stopped another's training for 50%" in problem
