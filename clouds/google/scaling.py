"""Another size of a cluster's training pool."""

from clouds.google.cluster import TrainingPool, autoscaling
from clouds.google.session import GcpSession
from clouds.reconciler.resource import ResourceState, ResourceStatus
from clouds.tags import Tags


class PoolSize(TrainingPool):
    """That the training pool has so many machines, and may have no more.

    The API does not tell how many there are, so its present size is always asked for once.
    """

    depends_on = ()
    expected = 120.0

    def __init__(self, session: GcpSession, tags: Tags, nodes: int) -> None:
        super().__init__(session, tags)
        self.nodes = nodes
        self.asked = False

    def seen(self, found) -> ResourceStatus:
        seen = super().seen(found)
        if seen.state is not ResourceState.READY or (self.asked and self._bounded(found)):
            return seen
        return ResourceStatus(ResourceState.PARTIAL, seen.id)

    def create(self) -> None:
        if not self._bounded(self.found()):
            bounds = autoscaling(self.nodes)
            self.begun(self.session.container("set_node_pool_autoscaling", name=self.id, autoscaling=bounds))
            return
        self.begun(self.session.container("set_node_pool_size", name=self.id, node_count=self.nodes))
        self.asked = True

    def _bounded(self, found) -> bool:
        return found.autoscaling.max_node_count == max(self.nodes, 1)
