"""How a cluster of GKE is planned: what may be asked for, what is there of it, and what does not change."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from clouds.cluster import CloudCluster
from clouds.options import COMMON_OPTIONS, DISK_GB, HOURS, admins_of, no_words, other_machines, until_of
from kitlib.clusters.base import Shape
from kitlib.errors import BadInput
from kitlib.k8s import names

if TYPE_CHECKING:
    from clouds.google.everything import Plan
    from clouds.google.session import Session

LONGEST_NAME = 40
OPTIONS = {
    "project": "its id; by default that of your Google credentials",
    "zone": "where the machines are, such as us-central1-c",
    "accelerator": "the GPU of each training machine, such as nvidia-tesla-t4; by default none",
    "machine_type": "of the training machines; by default one that fits",
    "spot": "True takes machines that Google may take back, for less than half of the price",
    "network": "one of the project's, in place of one of its own",
    **COMMON_OPTIONS,
}
MACHINE_OPTIONS = {"accelerator", "machine_type", "spot"}


class PlannedGke(CloudCluster):
    """A cluster of GKE, as far as it is planned."""

    @classmethod
    def checked(cls, name: str) -> str:
        names.validate_name(name, kind="cluster", longest=LONGEST_NAME)
        if name[0].isdigit():
            raise BadInput(
                "a GKE cluster's name begins with a letter", about=f'name "{name}"', fix=f'name="c{name}"'
            )
        return name

    @classmethod
    def _session(cls, name: str, given: Mapping[str, object]) -> "Session":
        from clouds.google.session import Session

        before = cls.memory.read(name) or {}
        zone = given.get("zone") or before.get("zone")
        if not zone:
            raise BadInput("no zone is named", about='create_cluster("gke")', fix='zone="us-central1-c"')
        return Session(given.get("project") or before.get("project"), str(zone))

    def _planned(self, shape: Shape) -> "Plan":
        from clouds.google.admins import subject_of
        from clouds.google.everything import Plan
        from clouds.google.machines import Machines

        given = shape.options
        fix = 'machine_type="e2-standard-4", or accelerator="nvidia-tesla-t4" for a GPU'
        no_words(shape, ("cpus", "memory"), about="gke", cloud="Google Cloud", fix=fix)
        machines = Machines.of(
            nodes=shape.nodes,
            machine_type=given.get("machine_type"),
            accelerator=given.get("accelerator"),
            gpus=shape.gpus,
            spot=bool(given.get("spot")),
            disk_gb=given.get("disk_gb", DISK_GB),
        )
        until = until_of(given.get("hours", HOURS))
        admins = admins_of(given.get("admins"))
        for each in admins:
            subject_of(each)
        trace = self._trace()
        if trace and trace.zone and trace.zone != self.session.zone:
            raise BadInput(
                f"the kit has a cluster of this name in {trace.zone}",
                about=self._title,
                fix=f'zone="{trace.zone}", or another name',
            )
        going_on = trace is not None and to_come(trace.tags.expires) is not None
        whose = trace.tags if going_on else self._tags(until)
        return Plan(self.session, whose, machines, given.get("network"), admins)

    def _trace(self):
        """Return what is there of it already; None if nothing is, or nobody may look yet."""
        from clouds.google.everything import traces
        from clouds.google.refusals import Refused, Why

        try:
            return traces(self.session).get(self.name)
        except Refused as error:
            if error.why in (Why.DISABLED, Why.DENIED, Why.PROJECT, Why.BILLING):
                return None  # the preflight says so, with all else that stands in the way
            raise

    def _as_it_is(self, found, plan: "Plan", shape: Shape) -> "Plan":
        from clouds.google.cluster import TRAINING
        from clouds.google.machines import Machines

        asked = plan.machines
        for config in (each.config for each in found.node_pools if each.name == TRAINING):
            there = Machines.found(config, nodes=asked.nodes)
            same = (there.machine_type, there.accelerator, there.spot)
            wanted = (asked.machine_type, asked.accelerator, asked.spot)
            if MACHINE_OPTIONS & set(shape.options) and same != wanted:
                has = f"machine_type={same[0]!r}, accelerator={same[1]!r}, spot={same[2]}"
                raise other_machines(has, self._title)
            plan = replace(plan, machines=there)
        return plan


def to_come(when: datetime | None) -> datetime | None:
    """Return a moment if it is to come."""
    return when if when is not None and when > datetime.now(UTC) else None
