"""A workshop of many on one cluster: rooms for everybody, a table of who is where, and undoing notebooks.

    >>> kit.workshop.rehearse(attendees=30, datasets=["mnist"], cluster="workshop")
    >>> kit.workshop.create(attendees=30, datasets=["mnist"], cluster="workshop")
    >>> kit.workshop.watch(cluster="workshop")
    >>> kit.workshop.add("late-lena", cluster="workshop")
    >>> kit.workshop.delete(cluster="workshop")

`gathering` makes and deletes the rooms, `surveying` and `room` tell whether the cluster has enough for all,
`rehearsing` tries it the day before, `staging` has the data for everybody, `handout` is what attendees get,
`jupyter` runs JupyterLab for those who have none, `undoing` takes back what a notebook made. What one
attendee has is in `kitlib.attendees`, what notebooks tell of themselves in `kitlib.presence`.
"""

from kitlib.workshop.gathering import Workshop, add, create, delete, status, watch
from kitlib.workshop.jupyter import Jupyter
from kitlib.workshop.rehearsing import rehearse
from kitlib.workshop.undoing import reset

__all__ = ["Jupyter", "Workshop", "add", "create", "delete", "rehearse", "reset", "status", "watch"]
