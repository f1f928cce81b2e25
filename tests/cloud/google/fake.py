"""A Google Cloud for tests: real servers on this machine, in this process, with a clock that a test moves.

README.md beside this says what is faithful and what is not.
"""

from collections.abc import Callable, Mapping
from functools import partial

from . import compute, iam, projects, repositories, storage
from .container import Container
from .nodes import Identities
from .rest import Rest
from .scheduler import Scheduler
from .servers import HttpServer
from .store import Store
from .world import Project, World

PROJECT = "trainyard-test"
NUMBER = 428015927319
SERVICES = (
    *("artifactregistry", "cloudbilling", "cloudresourcemanager", "cloudscheduler", "compute"),
    *("container", "containerfilesystem", "file", "iam", "logging", "serviceusage", "storage"),
)


class FakeGoogle:
    """A cloud with one project, all of whose APIs are enabled; README.md has what tests can tell it."""

    def __init__(self) -> None:
        self.project = Project(PROJECT, NUMBER, enabled=set(SERVICES))
        self.world = World(self.project)
        self.clock = self.world.clock
        self.calls = self.world.calls
        self.fail, self.cut, self.clear_faults = self.world.fail, self.world.cut, self.world.clear_faults
        store = Store(self.clock)
        projects.seed(store, self.project)
        self.rest = Rest(self.world, store)
        for service in (compute, iam, projects, repositories, storage):
            self.rest.specials |= service.SPECIALS
        self.container = Container(self.rest)
        self.scheduler = Scheduler(self.rest)
        self.world.may = partial(iam.may, self.rest)
        self.identities = Identities()
        self._https = [HttpServer(self.rest, self.identities.answer)]
        self.url = self._https[0].url
        self.token_webhook = f"{self.url}/_tokens"

    @property
    def endpoints(self) -> Mapping[str, str]:
        """The variables that lead clients here, as gcloud names them."""
        addresses = {service: f"{self.url}/{service}/" for service in SERVICES}
        # As gcloud has them: those of Compute Engine and Cloud Storage end with the version
        addresses |= {name: f"{self.url}/{name}/v1/" for name in ("compute", "storage")}
        return {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{key.upper()}": value for key, value in addresses.items()}

    def also_at(self, host: str) -> str:
        """Serve HTTP at another address of this machine, too, and return the URL: for pods."""
        self._https.append(HttpServer(self.rest, self.identities.answer, host))
        return self._https[-1].url

    def delay(self, kind: str, seconds: float) -> None:
        """Set how long a kind of operation takes; `world.DELAYS` has them."""
        assert kind in self.world.delays, kind
        self.world.delays[kind] = seconds

    def deny(self, permission: str) -> None:
        """Take a permission from the user: ``container.clusters.create``."""
        self.project.denied.add(permission)

    def quota(self, metric: str, most: float, *, region: str | None = None) -> None:
        """Set a quota of a region or, without one, of the project."""
        self.project.quotas[(region, metric)] = most

    def backing(self, endpoint: str, ca: str, on_pool: Callable | None = None) -> None:
        """Let clusters created from now on have a real API server; ``on_pool`` is `nodes.nodes_of` it."""
        self.world.endpoint, self.world.ca = endpoint.removeprefix("https://"), ca
        if on_pool:
            self.container.on_pool = on_pool

    def left(self) -> list[str]:
        """List what exists, but for what a project has from the beginning."""
        with self.world.lock:
            self.clock.settle()
            return self.container.left() + self.rest.store.left()

    def close(self) -> None:
        """Stop the servers."""
        for server in self._https:
            server.close()

    def __enter__(self) -> "FakeGoogle":
        return self

    def __exit__(self, *exception) -> None:
        self.close()
