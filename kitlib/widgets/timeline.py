"""A run's timeline that can draw itself; matplotlib is loaded by the first who asks for that."""

from dataclasses import fields

from kitlib.metrics import timeline


class Timeline(timeline.Timeline):
    """A timeline with its picture; made by :meth:`kitlib.Run.timeline`."""

    @classmethod
    def of(cls, known: timeline.Timeline) -> "Timeline":
        """Return the same timeline, with a picture."""
        return cls(**{each.name: getattr(known, each.name) for each in fields(known)})

    def plot(self):
        """Return its picture: world size, what each worker did, loss, and what each change cost.

        Example:
            >>> run.timeline().plot().save("timeline.png")
        """
        from kitlib.widgets import timeline_picture  # matplotlib takes half a second

        return timeline_picture.picture(self)
