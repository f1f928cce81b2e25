"""A laptop that falls asleep while a cluster is created, and wakes hours later."""

from trainyard_kit.clouds.steps import KEEP_AWAKE, Phase, Steps


def sleeps(clock, monkeypatch, *, hours, after=9):
    """Have a wait take hours: the one after so many."""
    naps, sleep = iter([0] * after + [hours * 3600]), clock.sleep
    monkeypatch.setattr(clock, "sleep", lambda seconds: sleep(seconds + next(naps, 0)))


def warnings(monkeypatch):
    """The rows that ask for this machine to stay awake."""
    rows, update = [], Steps.update

    def note(steps, name, phase, words="", **more):
        rows.extend([name] if phase is Phase.WAITING and words == KEEP_AWAKE else [])
        update(steps, name, phase, words, **more)

    monkeypatch.setattr(Steps, "update", note)
    return rows
