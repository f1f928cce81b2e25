"""An instructor's tools for a workshop on one shared cluster: attendees, capacity, rehearsal, status, reset.

>>> kit.workshop.rehearse(attendees=30, datasets=["mnist"], cluster="workshop")
>>> kit.workshop.create(attendees=30, datasets=["mnist"], cluster="workshop")
>>> kit.workshop.watch(cluster="workshop")
>>> kit.workshop.add("late-lena", cluster="workshop")
>>> kit.workshop.delete(cluster="workshop")
"""

from trainyard_kit.workshop.jupyter import Jupyter
from trainyard_kit.workshop.notebook_reset import reset
from trainyard_kit.workshop.rehearsal import rehearse
from trainyard_kit.workshop.workshop import (
    Workshop,
    add,
    create,
    delete,
    list_attendees,
    remove,
    status,
    watch,
)

__all__ = [
    "Jupyter",
    "Workshop",
    "add",
    "create",
    "delete",
    "list_attendees",
    "rehearse",
    "remove",
    "reset",
    "status",
    "watch",
]
