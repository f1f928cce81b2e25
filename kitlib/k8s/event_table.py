"""Kubernetes events as a table. Pure."""

from collections.abc import Iterable

from kitlib.display.tables import Table, age
from kitlib.k8s.manifests import Object


def events_table(events: Iterable[Object]) -> Table:
    """Return events as a table, oldest first."""

    def moment(event: Object) -> str:
        return event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]

    rows = [
        (
            age(moment(each)),
            each.get("type"),
            each.get("reason"),
            f"{each['involvedObject'].get('kind', '')}/{each['involvedObject'].get('name', '')}",
            each.get("message", ""),
        )
        for each in sorted(events, key=lambda each: (moment(each), each.get("eventTime") or ""))
    ]
    return Table(("age", "type", "reason", "object", "message"), rows, empty="no events")
