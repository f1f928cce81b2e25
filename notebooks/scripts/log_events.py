"""Wait for what the processes of a parameter-server job report: each line of their logs is a JSON object."""

import json


def next_event(run, event, who="master", after=0.0, **fields):
    """Follow the log of a process to the next event of a name, with these fields, after a time."""
    rows = (json.loads(line) for line in run.logs(rank=who, follow=True) if line.startswith("{"))
    return next(
        row for row in rows if row["event"] == event and row["time"] > after and row.items() >= fields.items()
    )
