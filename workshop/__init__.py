"""A workshop of many on one cluster: rooms for everybody, a table of who is where, and undoing notebooks.

    >>> kit.workshop.rehearse(attendees=30, datasets=["mnist"], cluster="workshop")
    >>> kit.workshop.create(attendees=30, datasets=["mnist"], cluster="workshop")
    >>> kit.workshop.watch(cluster="workshop")
    >>> kit.workshop.add("late-lena", cluster="workshop")
    >>> kit.workshop.delete(cluster="workshop")

`gathering` makes and deletes the rooms, `surveying` and `room` tell whether the cluster has enough for all,
`rehearsing` tries it the day before, `staging` has the data for everybody, `handout` is what attendees get,
`jupyter` runs JupyterLab for those who have none, `undoing` takes back what a notebook made. What one
attendee has is in `workshop.namespaces`, what notebooks tell of themselves in `workshop.progress_reporter`.
"""

from workshop.attendees import Workshop, add, create, delete, status, watch
from workshop.jupyter import Jupyter
from workshop.notebook_reset import reset
from workshop.rehearsal import rehearse

__all__ = ["Jupyter", "Workshop", "add", "create", "delete", "rehearse", "reset", "status", "watch"]
