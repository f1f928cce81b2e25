"""A provider whose cloud is a dictionary and whose time is simulated: for tests of what all clouds share."""

import base64
import itertools
from dataclasses import dataclass, replace

from kitlib import plugins
from kitlib.display.tables import Text
from kitlib.errors import BadInput, ProviderFailed
from trainyard_kit.checks import Probe, failed, ok, run
from trainyard_kit.clouds.cluster import CloudCluster
from trainyard_kit.clouds.cluster_store import ClusterStore, exec_kubeconfig
from trainyard_kit.clouds.spec import (
    COMMON_OPTIONS,
    CloudResource,
    CloudSpec,
    ClusterInfo,
    Machines,
    expiry_after,
)
from trainyard_kit.clouds.steps import Clock
from trainyard_kit.clouds.tags import Tags

NOWHERE = "https://127.0.0.1:9"  # nobody answers
PARTS = {"network": 20, "cluster": 540, "nodes": 180}  # seconds that each takes


class SimulatedClock(Clock):
    """Time that passes at once."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds


class Account:
    """An account at the made-up cloud, in one region.

    Attributes:
        things: The state of each part of each cluster.
        described: Each cluster, as the cloud describes it.
        faults: Errors that requests meet: by verb and part.
        calls: The requests that change something.
    """

    project = None

    def __init__(self, region="moon-1"):
        self.region, self.clock = region, SimulatedClock()
        self.shortage, self.attempts = ("", ""), itertools.count()
        self.things, self.described, self.faults, self.calls = {}, {}, {}, []

    def call(self, verb, cluster, part):
        self.calls.append((verb, part))
        if error := self.faults.get((verb, part)):
            raise error
        self.clock.sleep(PARTS[part])
        if verb == "create":
            self.things[cluster, part] = "active"
        else:
            self.things.pop((cluster, part), None)

    def left(self):
        return sorted({cluster for cluster, _ in self.things})


@dataclass(frozen=True)
class MoonPlan(CloudSpec):
    """The plan of a cluster, as a provider has it."""

    admins: tuple[str, ...] = ()


class MoonCluster(CloudCluster):
    """A cluster at the made-up cloud."""

    provider, cloud, location_attribute = "moon", "the Moon", "region"
    pool, ready_states = "train", ("active",)
    store = ClusterStore("moon")
    options = {"region": "of the moon", "spot": "cheaper"} | COMMON_OPTIONS
    price_list, system_machine = "amazon", "t3.large"
    account: Account

    @classmethod
    def validate_name(cls, name):
        if not name.isalnum():
            raise BadInput("letters and digits", about=f"name={name!r}", fix='name="lab"')
        return name

    @classmethod
    def _session(cls, name, options):
        return cls.account

    @classmethod
    def sessions(cls, *, regions, profile, project):
        if regions == "nowhere":
            raise ProviderFailed("no credentials were found", about="the Moon", fix="log in")
        return [cls.account]

    @classmethod
    def find(cls, name, *, region=None):
        cluster = cls(name, cls.account)
        return cluster if cluster._describe() else None

    @classmethod
    def credentials(cls, environment, home):
        return "", ""

    @classmethod
    def clusters(cls, session):
        return list(session.described.values())

    @classmethod
    def find_resources(cls, session, cluster=None):
        costs, resources = {"cluster": "0.10 $ an hour"}, []
        for (name, part), state in session.things.items():
            if cluster in (None, name):
                tags = session.described[name].tags if name in session.described else None
                what = (name, part, f"Moon::{part}", f"{part}-1", session.region)
                resources.append(CloudResource(*what, state, costs.get(part, ""), tags))
        return resources

    @classmethod
    def _delete(cls, session, name, steps):
        for part in reversed(PARTS):
            if (name, part) in session.things:
                with steps.step(part):
                    session.call("delete", name, part)
        session.described.pop(name, None)

    def _describe(self):
        return self.session.described.get(self.name)

    def _make_plan(self, shape):
        options, info = shape.options, self._describe()
        expires = info and info.tags.expires
        tags = self._tags(expires or expiry_after(options.get("hours", 4)))
        machines = Machines("m5.xlarge", shape.nodes, spot=options.get("spot") is True)
        return MoonPlan(tags, machines)

    def _reuse_existing(self, info, plan, shape):
        if info.machines and info.machines.spot != plan.machines.spot:
            raise BadInput("it exists already, with other machines", about=self.title, fix="delete it")
        return replace(plan, machines=info.machines or plan.machines)

    def _preflight(self, plan):
        def quota():
            enough = plan.machines.count <= 5
            return ok("quota", "5 nodes") if enough else failed("quota", "5 nodes", "fewer nodes")

        return run([Probe("quota", quota)], about=self.title)

    def _create(self, plan, steps):
        self.session.described.setdefault(
            self.name, ClusterInfo(plan.tags, state="creating", where=self.session.region)
        )
        for part in PARTS:
            if (self.name, part) not in self.session.things:
                with steps.step(part):
                    self.session.call("create", self.name, part)
        authority = base64.b64encode(b"a certificate").decode()
        info = ClusterInfo(plan.tags, plan.machines, plan.private, "active", "1.35", NOWHERE, authority)
        self.session.described[self.name] = replace(info, where=self.session.region)

    def _scale(self, nodes, steps):
        info = self._require_info()
        self.session.described[self.name] = replace(info, machines=replace(info.machines, count=nodes))

    def _ready_nodes(self):
        return self._require_info().machines.count if self.account.shortage == ("", "") else 0

    def _launch_failures(self):
        words, _ = self.account.shortage
        return {next(self.account.attempts): words} if words else {}

    def _permanent_failure_fix(self, message):
        return self.account.shortage[1]

    def _extend(self, info, until, steps):
        self.session.described[self.name] = replace(info, tags=replace(info.tags, expires=until))

    def _quotas(self, machines, nodes, more):
        yield ok("quota", f"{nodes} of {machines.type}, {more} more")

    def _install_addons(self, plan):
        self.session.calls.append(("install", "addons"))

    def _location(self):
        return {"region": self.session.region}

    def _kubeconfig(self, info):
        return exec_kubeconfig(self.name, info, {"command": "moon-token", "args": [], "apiVersion": "v1"})

    def nodes(self):
        return Text(f"{self._require_info().machines.count} nodes")

    def add_admin(self, principal):
        return Text(principal)

    @property
    def bucket(self):
        return f"moon://{self.name}"

    @property
    def _create_call(self):
        return f'kit.create_cluster("moon", name="{self.name}")'


def tags(name="lab", expires=None):
    """Tags of the test's user."""
    return Tags(name, "ada", "course", expires)


def provide(monkeypatch, **classes):
    """Let these be the providers that entry points name."""
    monkeypatch.setattr(plugins, "entries", lambda group: classes if group == "kitlib.providers" else {})
    monkeypatch.setattr(plugins, "load", lambda entry: entry if isinstance(entry, type) else entry.load())
