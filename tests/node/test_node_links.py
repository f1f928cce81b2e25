"""Links between nodes: how fast pods really send over them, and what else they touch."""

import os

import pytest

from .clusters import Refused, eventually, localkube, on_node, pod, python, running_cluster, state_home
from .unprivileged import enter_as_nobody, nobodys

# What a receiver counts after the first half second, in Mbit/s, as a program gets it.
SINK = """
import socket, threading, time
def count(peer):
    got, seconds, buffer = 0, float(peer.recv(8).decode()), bytearray(1 << 18)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        peer.recv_into(buffer)
    start = last = time.monotonic()
    while last < start + seconds:
        got += peer.recv_into(buffer)
        last = time.monotonic()
    peer.sendall(f"{got * 8 / (last - start) / 1e6:.3f}".encode())
    peer.close()
listener = socket.create_server(("", 9000))
while True:
    threading.Thread(target=count, args=(listener.accept()[0],)).start()
"""
SEND = """
import socket, sys, threading
peer = socket.create_connection((sys.argv[1], 9000))
peer.sendall(sys.argv[2].encode().ljust(8))
def fill():
    try:
        while True:
            peer.sendall(bytes(1 << 17))
    except OSError:
        pass
threading.Thread(target=fill, daemon=True).start()
print(peer.recv(64).decode())
"""
REACH = 0.05


class Rates:
    """Pods of a cluster, one on each node, and the rates between them."""

    def __init__(self, cluster, pods):
        self.cluster, self.names, self.addresses = cluster, [], []
        for index in range(4):
            main = python(SINK) | {"readinessProbe": {"tcpSocket": {"port": 9000}, "periodSeconds": 1}}
            running = pods.running(pod(main=main, **on_node(index)))
            self.names.append(running["metadata"]["name"])
            self.addresses.append(running["status"]["podIP"])

    def between(self, sender, receiver, seconds=2):
        words = ("--", "python", "-c", SEND, self.addresses[receiver], str(seconds))
        return float(self.cluster.kubectl("exec", self.names[sender], *words))

    def link(self, *words):
        return localkube("link", self.cluster.name, *words, **self.options)

    def holds(self, sender, receiver, expected):
        """Measure until a rate is as wanted: on a machine that does other work a sample may be too small."""
        seconds = 4 if expected < 50 else 2
        eventually(lambda: abs(self.between(sender, receiver, seconds) / expected - 1) <= REACH)


NOBODY = pytest.param("nobody", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=["root", NOBODY] if os.getuid() == 0 else ["user"])
def rates(request, tmp_path_factory):
    from .clusters import Pods

    shape = ("--nodes", "4", "--racks", "2")
    if request.param == "nobody":
        home = tmp_path_factory.mktemp("nobody")
        for folder in (home, home.parent, home.parent.parent):
            folder.chmod(0o755)
        os.chown(home, 65534, 65534)
        options = {"enter": enter_as_nobody(home), **nobodys(home)}
        with running_cluster(*shape, name="links", home=home, **options) as cluster, Pods(cluster) as pods:
            rates = Rates(cluster, pods)
            rates.options = {"home": home, "preexec_fn": options["enter"], **nobodys(home)}
            yield rates
        return
    with (
        state_home(request.config.cache.mkdir("links")) as home,
        running_cluster(*shape, name="links", home=home) as cluster,
        Pods(cluster) as pods,
    ):
        rates = Rates(cluster, pods)
        rates.options = {"home": home}
        yield rates


def test_links_change_add_up_survive_the_kubelet_and_go(rates):
    (row,) = rates.link("rack-a", "rack-b", "--bandwidth", "100Mbit")
    assert (row["link"], row["bandwidth"]) == ("rack-a to rack-b", "100 Mbit/s")
    rates.link("node-3", "--bandwidth", "20Mbit")
    rates.holds(0, 3, 20)  # the narrower of both
    rates.holds(2, 3, 20)  # also from its own rack
    rates.holds(0, 2, 100)
    rates.holds(2, 1, 100)
    assert rates.between(0, 1) > 150  # of one rack: as fast as this machine
    old = rates.cluster.process("localkube.kubelet")
    old.kill()
    old.wait()
    eventually(lambda: [row["link"] for row in rates.link()] == ["node-3", "rack-a to rack-b"])
    rates.link("node-3", "--bandwidth", "40Mbit")
    rates.holds(3, 1, 40)
    with pytest.raises(Refused, match="share some of their nodes"):
        rates.link("node-1", "local-a", "--bandwidth", "1Gbit")
    script = "ip link set eth0 down 2>&1; tc qdisc replace dev eth0 root pfifo 2>&1; true"
    rates.cluster.kubectl("exec", rates.names[3], "--", "sh", "-c", script)
    rates.holds(3, 1, 40)  # its root changes nothing of it
    assert [row["link"] for row in rates.link("node-3", "--remove")] == ["rack-a to rack-b"]
    rates.holds(0, 3, 100)
    assert rates.link("--remove") == []
    assert rates.between(0, 3) > 150


@pytest.mark.slow
@pytest.mark.parametrize(("bandwidth", "expected"), [("10Mbit", 10), ("1Gbit", 1000)])
def test_slower_and_faster_links_are_kept_as_well(rates, bandwidth, expected):
    rates.link("rack-a", "rack-b", "--bandwidth", bandwidth)
    rates.holds(0, 3, expected)
    rates.link("--remove")
