"""Speed-up of runs: the median step, what it consists of, and the efficiency that follows."""

import pytest

from kitlib.errors import BadInput
from kitlib.metrics.events import Event
from trainyard_kit.elastic_lab.speed_up import StepTime, StepTimes, step_time
from trainyard_kit.elastic_lab.speed_up_plot import plot_speed_up

# Workers divide 400 ms of a step. 20 ms are not divided; the network takes 10 ms for two and 30 ms for four.
STRONG = (StepTime(1, 64, 0.42, 0.4), StepTime(2, 32, 0.23, 0.2), StepTime(4, 16, 0.15, 0.1))
WEAK = (StepTime(1, 64, 0.42, 0.4), StepTime(4, 64, 0.45, 0.4))


def events(workers, *steps, every=1, batch_size=16, ms=None, rank=0):
    """A rank's log; ``steps`` are the seconds at which they ended, None between two epochs."""
    logged = [Event("start", 0.0, rank, workers, {"batch_size": batch_size, "device": "cpu"})]
    logged += [Event("simulated_accelerator", 0.0, rank, workers, {"ms_per_image": ms})] if ms else []
    epoch = number = 0
    for at in steps:
        if at is None:
            epoch += 1
            continue
        logged.append(Event("step", at, rank, workers, {"step": number, "epoch": epoch}))
        number += every
    return logged


def test_a_slow_step_and_the_pause_between_epochs_do_not_move_a_runs_step_time():
    measured = step_time(events(4, 1.0, 1.5, 2.0, 9.0, None, 20.0, 20.5), run="x")
    assert measured == StepTime(4, 16, 0.5)
    assert measured.images_per_s == 4 * 16 / 0.5


def test_steps_that_are_not_logged_are_counted_and_other_ranks_are_not():
    other_rank = events(2, 1.0, 7.0, every=5, rank=1)
    assert step_time(other_rank + events(2, 1.0, 3.0, 5.0, every=5, ms=3), run="x") == StepTime(
        2, 16, 0.4, 16 * 0.003
    )


@pytest.mark.parametrize("logged", [events(1, 1.0), events(1, 1.0, 2.0, batch_size=None), []])
def test_a_run_that_says_too_little_is_named_with_what_to_do(logged):
    with pytest.raises(BadInput, match=r"(?s)run short: .*--log-every=1"):
        step_time(logged, run="short")


def test_a_batch_that_is_divided_follows_amdahls_law_less_the_network():
    speed = StepTimes(STRONG)
    assert speed.simulated
    assert speed.not_divided == pytest.approx(0.02)
    assert [speed.rest(answer) for answer in STRONG] == pytest.approx([0, 0.01, 0.03])
    assert [speed.speed_up(answer) for answer in STRONG] == pytest.approx([1, 0.42 / 0.23, 0.42 / 0.15])
    # Amdahl: 1 / (s + (1 - s) / n) with s = 20 / 420.
    amdahl = [1 / (20 / 420 + 400 / 420 / n) / n for n in (1, 2, 4)]
    assert [speed.amdahl(answer) for answer in STRONG] == pytest.approx(amdahl)


def test_batches_that_grow_with_the_workers_lose_to_the_network_alone():
    speed = StepTimes(WEAK)
    assert speed.amdahl(WEAK[1]) == pytest.approx(1)
    assert speed.efficiency(WEAK[1]) == pytest.approx(0.42 / 0.45)
    assert speed.rest(WEAK[1]) == pytest.approx(0.03)


def test_the_speed_up_has_a_row_for_each_run():
    row = "4        16               150.0      426.7     2.8       70            100.0"
    assert row in repr(StepTimes(STRONG))
    assert StepTimes(STRONG).table()[0]["efficiency %"] == 100
    raw = StepTimes((StepTime(1, 64, 0.01), StepTime(4, 16, 0.02)))
    assert "rest ms" not in raw.table().columns
    assert plot_speed_up(raw).alt == "Speed-up, cpu: 1.00 with 1, 0.50 with 4"
    assert plot_speed_up(StepTimes(STRONG)).alt.startswith("Speed-up, simulated accelerator: 1.00 with 1")


def computing(rank, *, cpu_ms, cores, machine, workers=4):
    fields = {"ms_per_image": 1, "cpu_ms": cpu_ms, "cores": cores, "machine": machine}
    return Event("simulated_accelerator", 1.0, rank, workers, fields)


def test_ranks_of_one_machine_share_its_cores_and_those_of_another_do_not():
    logged = events(4, 1.0, 1.2, ms=1)
    shared = [computing(rank, cpu_ms=60, cores=2, machine="a") for rank in range(4)]
    assert step_time(logged + shared, run="x").real == pytest.approx(4 * 0.060 / 2)
    apart = [computing(rank, cpu_ms=60, cores=2, machine=f"{rank}") for rank in range(4)]
    assert step_time(logged + apart, run="x").real == pytest.approx(0.060 / 2)
    later = [*shared, computing(0, cpu_ms=20, cores=2, machine="a")]
    assert step_time(logged + later, run="x").real == pytest.approx((20 + 3 * 60) / 2000)
    assert step_time(logged, run="x").real is None


def test_real_computing_beyond_the_simulated_time_is_called_cores_and_no_network():
    # 25 ms are simulated; four ranks really compute 120 ms of a step on the two cores that they share.
    first = StepTime(1, 256, 0.12, 0.1, real=0.03, cores=2)
    four = StepTime(4, 64, 0.2, 0.025, real=0.12, cores=2)
    speed = StepTimes((first, four))
    assert speed.waiting_for_cores(first) == 0
    assert speed.waiting_for_cores(four) == pytest.approx(0.12 - 0.025 - 0.02)
    assert speed.rest(four) == pytest.approx(0.2 - 0.12)
    assert "really computes for 120 ms on all 2 cores" in repr(speed)
    assert "simulated 25 ms" in speed._repr_html_()
    enough = StepTimes((first, StepTime(4, 64, 0.05, 0.025, real=0.02, cores=64)))
    assert (enough.waiting_for_cores(enough.times[1]), enough.too_few_cores()) == (0, "")
