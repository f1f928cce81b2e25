"""A Google Cloud for tests: real servers on this machine, in this process, with a clock that a test moves.

The container API is served over gRPC, the others over HTTP from the discovery documents of
google-api-python-client. README.md beside this says what is faithful and what is not.
"""

from collections.abc import Callable, Mapping
from functools import partial

from . import builds, compute, container_rest, http_control, iam, images, seeds, storage, usage
from .clock import SimulatedClock
from .container import Container
from .http_server import HttpServer
from .identities import Identities
from .rest import Rest
from .rpc import RpcServer
from .scheduler import Scheduler
from .store import Store
from .world import Call, Project, World

PROJECT = "trainyard-test"
NUMBER = 428015927319
SERVICES = (
    "artifactregistry",
    "cloudbilling",
    "cloudbuild",
    "cloudresourcemanager",
    "cloudscheduler",
    "compute",
    "container",
    "file",
    "iam",
    "logging",
    "serviceusage",
    "storage",
)


_PARTS = (builds, compute, container_rest, iam, images, storage, usage)


class FakeGoogle:
    """A cloud with one project, all of whose APIs are enabled.

    Args:
        speed: Simulated seconds in a real one; 0 lets the time stand still until ``clock.advance(seconds)``.

    Attributes:
        clock: The simulated clock.
        container: The clusters, for a test that looks behind the API.
        rest: All other services; ``rest.store`` has their resources.
        identities: Whose the access tokens are.
        scheduler: What schedules have called so far is in its ``fired``.
        project: The project: what it has enabled, who pays, what is denied, its quotas.
        endpoints: The environment variables that lead clients here.

    Example:
        >>> with FakeGoogle() as google:
        ...     google.delay("CREATE_CLUSTER", 600)
        ...     google.fail("container.CreateNodePool", 1, stockout("us-central1-c"))
        ...     os.environ.update(google.endpoints)
        ...     google.clock.advance(600)
        ...     google.left()
    """

    def __init__(self, *, speed: float = 0.0, project: str = PROJECT) -> None:
        self.clock = SimulatedClock(speed)
        self.world = World(self.clock)
        self.project = Project(project, NUMBER, enabled=set(SERVICES))
        self.world.projects[project] = self.project
        store = Store(self.world)
        seeds.plant(store, self.project)
        self.container = Container(self.world, store)
        specials = {key: value for each in _PARTS for key, value in each.SPECIALS.items()}
        self.rest = Rest(self.world, store, self.container, specials, _called)
        self.scheduler = Scheduler(self.rest)
        specials.update(self.scheduler.specials)
        self.world.may = partial(iam.may, self.rest)
        self._rpc = RpcServer(self.world, self.container)
        self.identities = Identities()
        doors = {"_fake": self._control, "_tokens": lambda _, asked: self.identities.answer(asked)}
        self._http = HttpServer(self.rest, doors)
        self._others: list[HttpServer] = []

    @property
    def endpoints(self) -> Mapping[str, str]:
        """The variables that lead clients here, as gcloud names them."""
        url = self._http.url
        found = {each: f"{url}/{each}/" for each in SERVICES}
        # As gcloud has them: those of Compute Engine and Cloud Storage end with the version
        found |= {each: f"{url}/{each}/v1/" for each in ("compute", "storage")}
        found["container"] = f"http://127.0.0.1:{self._rpc.port}"
        return {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{key.upper()}": value for key, value in found.items()}

    @property
    def url(self) -> str:
        """Where the HTTP services are; ``/_fake/`` below it is `http_control`."""
        return self._http.url

    def also_at(self, host: str) -> str:
        """Serve HTTP at another address of this machine, too, and return the URL: for pods.

        They do not reach the loopback.
        """
        self._others.append(HttpServer(self.rest, {}, host))
        return self._others[-1].url

    @property
    def calls(self) -> list[Call]:
        """Every request so far, over all services, in order."""
        return self.world.calls

    def fail(self, method: str, nth: int, error, *, times: float = 1) -> None:
        """Let the nth call of a method from now on fail, and the next ``times - 1``.

        Args:
            method: ``container.CreateNodePool``, ``compute.zones.list``; ``*`` stands for anything.
            error: An `ApiError` refuses the request; an `OperationFailure` lets the operation that it begins
                fail.
        """
        self.world.fail(method, nth, error, times=times)

    def cut(self, nth: int, when: str, **options) -> None:
        """Cut the connection at the nth call, ``before`` or ``after`` its effect, until `clear_faults`."""
        self.world.cut(nth, when, **options)

    def clear_faults(self) -> None:
        """Let calls through again; faults that did not strike are forgotten."""
        self.world.clear_faults()

    def delay(self, kind: str, seconds: float) -> None:
        """Set how long a kind of operation takes; `world.DELAYS` has them.

        Raises:
            KeyError: There is no such kind.
        """
        if kind not in self.world.delays:
            raise KeyError(f"{kind}; there are {', '.join(self.world.delays)}")
        self.world.delays[kind] = seconds

    def deny(self, permission: str) -> None:
        """Take a permission from the user: ``container.clusters.create``, ``compute.networks.create``."""
        self.project.denied.add(permission)

    def quota(self, metric: str, most: float, *, region: str | None = None) -> None:
        """Set a quota of the project, of a region or, without one, of all together."""
        self.project.quotas[(region, metric)] = most

    def backing(self, endpoint: str, ca: str, on_pool: Callable | None = None) -> None:
        """Let clusters made from now on hand out a real API server.

        Args:
            endpoint: ``host:port``.
            ca: The certificate of its authority, base64 of PEM.
            on_pool: Told of each pool and its number of machines; see `nodes.nodes_of`.
        """
        self.world.endpoint, self.world.ca = endpoint.removeprefix("https://"), ca
        if on_pool:
            self.container.on_pool = on_pool

    def registry(self, address: str, login: str = "") -> None:
        """Let a real registry stand for Artifact Registry.

        Args:
            address: ``host:port``.
            login: ``user:password``, to look into it.
        """
        self.world.registry, self.world.login = address, login

    @property
    def token_webhook(self) -> str:
        """Where a real API server asks whose a token is; `identities` know."""
        return f"{self.url}/_tokens"

    def left(self) -> list[str]:
        """Return what exists, in all services: what a project has from the beginning is not in it."""
        with self.world.lock:
            self.clock.settle()
            clusters = [f"container.googleapis.com/{each}" for each in self.container.left()]
            return clusters + self.rest.store.left() + iam.bindings_left(self.rest)

    def close(self) -> None:
        """Stop the servers."""
        for each in (self._http, *self._others):
            each.close()
        self._rpc.close()

    def _control(self, word: str, given: dict) -> object:
        return http_control.answer(self, word, given)

    def __enter__(self) -> "FakeGoogle":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def _called(route) -> str:
    """Return how a method is called in the log: those of the container API by their RPC."""
    if route.id.startswith("container."):
        return f"container.{container_rest.rpc_of(route)}"
    return route.id
