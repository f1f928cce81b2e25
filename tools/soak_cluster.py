"""Disturb a cluster of thirty attendees at random, and check that nothing is lost or left behind.

``make soak`` takes an hour; ``HOURS=`` changes that, and ``SEED=7`` repeats a run. Attendees
create objects, run jobs, and use exec, logs and port-forward, while components are killed, nodes are stopped
and isolated, and the disk is full for a while. At the end every acknowledged object must exist with its
content, no resource may have leaked, and the memory of kubelet and supervisor and the size of etcd must not
have grown.

``CREATE=200`` creates and deletes 200 clusters instead, of which nothing may remain.

The disturbances and their times depend only on the seed. Each is printed as a line of JSON with its result.
"""

import signal
from typing import Any

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt of the imports below shows no traceback

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from smoke.stopping import Stopping

from localkube.runtime import syscalls

NAME, NODES = "soak", 4
DISK = "1500m"  # small, as it is filled: the pods request little of it
KEPT = Path("reports", "soak")
ATTACKS_FROM = 600.0  # seconds; a shorter soak tries two


@contextlib.contextmanager
def own_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a small file system in ``folder`` that only this process and its children see.

    Yields:
        Its mount point; None if the machine does not allow it.
    """
    mount_point = folder / "disk"
    mount_point.mkdir()
    user, group = os.getuid(), os.getgid()
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS | (syscalls.CLONE_NEWUSER if user else 0))
        if user:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("tmpfs", str(mount_point), "tmpfs", 0, f"mode=700,size={DISK}")
    except OSError:
        yield None
        return
    try:
        yield mount_point
    finally:
        syscalls.unmount(str(mount_point))


@contextlib.contextmanager
def own_cluster(state_dir: Path, *, keep: Path) -> Iterator[Any]:
    """Yield a local cluster with its own state directory; its logs are kept."""
    import kitlib as kit
    from localkube.paths import ClusterPaths

    os.environ["XDG_STATE_HOME"] = str(state_dir)
    root = ClusterPaths(NAME).root
    cluster = kit.create_cluster("local", name=NAME, nodes=NODES)
    try:
        yield cluster, root
    finally:
        try:
            shutil.copytree(root / "logs", keep, dirs_exist_ok=True)
        finally:
            cluster.delete()


def soak(options: argparse.Namespace, *, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Create a cluster, disturb it, and return the verdict."""
    with tempfile.TemporaryDirectory(prefix="trainyard-soak-") as folder, own_disk(Path(folder)) as disk:
        from soak.attacks import ATTACKS
        from soak.plan import plan
        from soak.soak import Soak

        state_dir, seconds = disk or Path(folder), options.hours * 3600
        without = set() if disk else {"disk"}
        for lane in without:
            report({"what": "left out", "lane": lane, "why": "this user may not mount a file system here"})
        disturbances = plan(options.seed, seconds=seconds, without=without)
        with own_cluster(state_dir, keep=options.logs) as (cluster, root):
            run = Soak(cluster, root, disk=disk, report=report)
            run.start(options.attendees, attacks=2 if seconds < ATTACKS_FROM else len(ATTACKS))
            run.disturb(disturbances, seconds=seconds)
            return run.finish()


def create_and_delete(cycles: int, *, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Create and delete a number of clusters, and return the verdict."""
    from soak.churn import churn

    with tempfile.TemporaryDirectory(prefix="trainyard-soak-") as state_dir:
        return churn(cycles, state_dir=Path(state_dir), report=report)


def main(argv: list[str] | None = None) -> int:
    """Return 0 if all invariants hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="by default a random one")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--attendees", type=int, default=30)
    parser.add_argument("--logs", type=Path, default=KEPT, help="the folder for the components' logs")
    parser.add_argument("--create", type=int, metavar="N", help="create and delete N clusters instead")
    options = parser.parse_args(argv)

    def report(record: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(record) + "\n")  # in one call, as threads share it
        sys.stdout.flush()

    Stopping()  # signals also delete the cluster
    if options.create:
        verdict = create_and_delete(options.create, report=report)
    else:
        report(
            {
                "seed": options.seed,
                "again": f"make soak SEED={options.seed} HOURS={options.hours:g}",
            }
        )
        verdict = soak(options, report=report)
    report(verdict)
    return 1 if verdict["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
