"""Count what a default cluster asks of each simulated cloud, and how long it takes there in simulated time.

python -m tests.cloud.request_counts    # prints the tables of docs/clouds.md
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from .aws import FakeAmazon
from .google.fake import PROJECT, FakeGoogle
from .scenarios import AwsScenario, CloudScenario, GcpScenario


@contextmanager
def variables(**given: str) -> Iterator[None]:
    """Have variables in the environment for a while."""
    before = dict(os.environ)
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def measure(world: CloudScenario) -> dict[str, object]:
    """Create and delete; one step after another takes as long as all of them together."""
    seen = []
    began = world.clock.now()
    made = world.create(workers=8, report=seen.append).requests
    created = world.clock.now()
    gone = world.delete(workers=8).requests
    deleted = world.clock.now()
    assert world.left() == []
    alone = sum(each.actual for each in seen[-1].steps)
    return {
        "create": made,
        "delete": gone,
        "minutes": ((created - began) / 60, (deleted - created) / 60),
        "one after another": alone / 60,
        "ratio": (created - began) / alone,
    }


def service(request: str) -> str:
    """Return of which service a request is."""
    return request.replace(".", ":", 1).partition(":")[0]


def show(name: str, world: CloudScenario) -> None:
    """Print what was measured, as Markdown."""
    found = measure(world)
    print(
        f"\n{name}: created in {found['minutes'][0]:.1f} simulated minutes, deleted in "
        f"{found['minutes'][1]:.1f}; one step after another {found['one after another']:.1f}; "
        f"ratio {found['ratio']:.2f}\n"
    )
    print(f"| {name} | create: looks | changes | delete: looks | changes |")
    print("| --- | ---: | ---: | ---: | ---: |")
    every = sorted({service(each) for act in ("create", "delete") for each in found[act]})
    for row in (*every, "all"):
        cells = []
        for act in ("create", "delete"):
            asked = [each for each in found[act] if row in ("all", service(each))]
            changing = sum(map(world.changes, asked))
            cells += [len(asked) - changing, changing]
        print(f"| {row} | " + " | ".join(map(str, cells)) + " |")


def main() -> None:
    """Print the figures of both clouds."""
    nowhere = tempfile.gettempdir() + "/nowhere"
    keys = {"AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST", "AWS_SECRET_ACCESS_KEY": "secret"}
    files = {"AWS_CONFIG_FILE": nowhere, "AWS_SHARED_CREDENTIALS_FILE": nowhere}
    with FakeAmazon() as amazon, variables(
        AWS_ENDPOINT_URL=amazon.endpoint, MOTO_IAM_LOAD_MANAGED_POLICIES="true", **keys, **files
    ):  # fmt: skip
        amazon.reset()
        show("EKS", AwsScenario(amazon, {}))
    with FakeGoogle() as google, variables(
        GOOGLE_CLOUD_PROJECT=PROJECT, CLOUDSDK_CONFIG=nowhere, NO_GCE_CHECK="true", **google.endpoints
    ):  # fmt: skip
        show("GKE", GcpScenario(google, setattr))


if __name__ == "__main__":
    main()
