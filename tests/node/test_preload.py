"""Plain mode's preload library, alone: what programs see of paths, names and addresses."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from localkube.cluster.preparation import environment
from localkube.network.addresses import LoopbackAddresses, reserve_octet
from localkube.runtime import preload

ADDRESS = "10.244.1.7"


@dataclass(frozen=True)
class Pod:
    """A pod whose processes are started here."""

    description: Path
    library: Path
    volume: Path
    octet: int

    def run(self, *command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
        loaded = {"LD_PRELOAD": str(self.library), "TRAINYARD_POD": str(self.description)}
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **(env or {}), **loaded}
        return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60)

    def python(self, source: str):
        """Run a program that prints one JSON value, and return the value."""
        done = self.run(sys.executable, "-c", textwrap.dedent(source))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def library():
    return preload.obtain(report=print)


def test_a_compiler_that_lacks_a_part_is_passed_over(tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'cc: cannot execute cc1' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", str(broken))
    assert preload.obtain(report=print).stat().st_size > 0


@pytest.fixture
def pod(tmp_path, library):
    octet, _ = reserve_octet("a-test")
    volume, closed, scratch = (tmp_path / name for name in ("volume", "closed", "scratch"))
    for directory in (volume, closed, scratch):
        directory.mkdir()
    (closed / "settings").write_text("kept\n")
    lines = [
        ("address", ADDRESS),
        ("octet", str(octet)),
        ("low", "64000"),
        ("dns", "10.244.0.1"),
        ("hostname", "digits-0"),
        ("search", "default.svc.cluster.local"),
        ("host", "digits-0.digits.default.svc.cluster.local", ADDRESS),
        ("host", "digits-0", ADDRESS),
        ("host", "other", "10.244.2.9"),
        ("path", "rw", "/data", str(volume)),
        ("path", "ro", "/data/closed", str(closed)),
        ("path", "rw", "/tmp", str(scratch)),
        # As a cluster does: its own Python is where it is, below /tmp as well.
        *(("path", "ro", place, place) for place in environment()),
    ]
    description = tmp_path / "pod"
    description.write_text("".join("\t".join(line) + "\n" for line in lines))
    return Pod(description, library, volume, octet)


def test_a_volume_is_seen_in_its_place_by_python_and_by_programs(pod):
    (pod.volume / "sub").mkdir()
    (pod.volume / "sub" / "file").write_text("hello\n")
    printed = pod.python("""
        import json, os, shutil
        os.chdir("/data/sub")
        os.makedirs("/data/new/deep")
        shutil.copy("/data/sub/file", "/data/new/deep/copy")
        os.rename("/data/new/deep/copy", "/data/new/moved")
        os.symlink("/data/sub/file", "/data/link")
        names = sorted(os.listdir("/data"))
        print(json.dumps([open("file").read(), os.getcwd(), names, os.path.realpath("/data/link"),
                          open("/data/./sub//file").read()]))
    """)
    assert printed == ["hello\n", "/data/sub", ["link", "new", "sub"], "/data/sub/file", "hello\n"]
    assert (pod.volume / "new" / "moved").read_text() == "hello\n"
    shell = pod.run(
        "sh", "-c", "cd /data/sub && pwd && cat file && echo more >> file && tail -n 1 /data/sub/file"
    )
    assert shell.stdout == "/data/sub\nhello\nmore\n"


def test_the_interpreter_finds_a_script_of_a_volume_below_tmp(pod):
    script = pod.volume / "hello"
    script.write_text("#!/bin/sh\ntest -e /tmp/hello || echo hello from $0\n")
    script.chmod(0o755)
    # The kernel gives the interpreter the script's real path, of which /tmp hides the beginning.
    done = pod.run("/bin/sh", "-c", "exec /data/hello")
    assert (done.stdout, done.stderr) == (f"hello from {script}\n", "")


def test_a_read_only_volume_refuses_every_way_of_writing(pod):
    refused = pod.python("""
        import json, os
        attempts = [
            lambda: open("/data/closed/new", "w"), lambda: open("/data/closed/settings", "a"),
            lambda: os.mkdir("/data/closed/new"), lambda: os.unlink("/data/closed/settings"),
            lambda: os.rename("/data/closed/settings", "/data/taken"),
            lambda: os.rename("/tmp", "/data/closed/x"),
            lambda: os.symlink("/x", "/data/closed/x"), lambda: os.chmod("/data/closed/settings", 0o600),
            lambda: os.truncate("/data/closed/settings", 0), lambda: os.utime("/data/closed/settings"),
            lambda: (os.chdir("/data/closed"), open("relative", "w")),
        ]
        found = []
        for attempt in attempts:
            try:
                attempt()
                found.append("wrote")
            except OSError as error:
                found.append(error.strerror)
        print(json.dumps(found))
    """)
    assert set(refused) == {"Read-only file system"}, refused
    assert pod.python("import json; print(json.dumps(open('/data/closed/settings').read()))") == "kept\n"


def test_each_pod_has_a_tmp_of_its_own_also_for_names_that_the_c_library_makes_up(pod):
    name = pod.run("mktemp").stdout.strip()
    assert name.startswith("/tmp/") and not Path(name).exists()
    sock = "import json, socket, os; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/" + "long" * 10
    assert pod.python(sock + "'); print(json.dumps(sorted(os.listdir('/tmp'))))") == sorted(
        ["long" * 10, name.removeprefix("/tmp/")]
    )


def test_the_pods_name_and_hosts_are_those_of_its_files(pod):
    printed = pod.python("""
        import json, platform, socket
        print(json.dumps([socket.gethostname(), platform.node(), socket.getfqdn(),
                          socket.gethostbyname("other"), socket.getaddrinfo("digits-0", 80)[0][4]]))
    """)
    full = "digits-0.digits.default.svc.cluster.local"
    assert printed == ["digits-0", "digits-0", full, "10.244.2.9", [ADDRESS, 80]]
    assert pod.run("sh", "-c", "hostname; hostname -f").stdout == f"digits-0\n{full}\n"


def test_unknown_cluster_names_are_not_forwarded_to_the_machine(pod):
    source = "import json, socket\ntry: socket.getaddrinfo('no.default.svc.cluster.local', 1)\n"
    assert pod.python(source + "except socket.gaierror as error: print(json.dumps(error.errno))") == -2


@pytest.mark.parametrize("family, anywhere", [("AF_INET", "0.0.0.0"), ("AF_INET6", "::")])
def test_a_listener_on_every_address_listens_on_the_pods_alone(pod, family, anywhere):
    printed = pod.python(f"""
        import json, socket
        server = socket.socket(socket.{family}); server.bind(("{anywhere}", 0)); server.listen()
        port = server.getsockname()[1]
        client = socket.create_connection(("digits-0", port))
        accepted, peer = server.accept()
        local = socket.create_connection(("localhost", port))
        tables = [open(f"/proc/net/{{table}}").readlines()[1:] for table in ("tcp", "tcp6")]
        lines = [line.split()[1] for table in tables for line in table]
        heard = [each for each in lines if each.endswith(f":{{port:04X}}")]
        addresses = [server.getsockname(), client.getpeername(), client.getsockname(), peer]
        print(json.dumps([*(each[0] for each in addresses), heard]))
    """)
    wide = "::ffff:" if family == "AF_INET6" else ""
    assert printed[:4] == [wide + ADDRESS, ADDRESS, ADDRESS, wide + ADDRESS]
    real = f"{7:02X}{1:02X}{pod.octet:02X}{127:02X}"
    assert printed[4] and all(line.split(":")[0].endswith(real) for line in printed[4])


def test_two_pods_use_the_same_port_and_reach_each_other(pod, tmp_path):
    other_pod = tmp_path / "other-pod"
    other_pod.write_text(
        pod.description.read_text().replace(ADDRESS, "10.244.2.9").replace("digits-0", "other")
    )
    server = """if True:
        import socket
        server = socket.socket(); server.bind(("", 80)); server.listen()
        print(1, flush=True)
        client, peer = server.accept(); client.send(peer[0].encode())
    """
    environment = {"LD_PRELOAD": str(pod.library), "PATH": os.environ["PATH"]}
    with subprocess.Popen(
        [sys.executable, "-c", server],
        env=environment | {"TRAINYARD_POD": str(other_pod)},
        stdout=subprocess.PIPE,
    ) as progress:
        progress.stdout.readline()
        printed = pod.python("""
            import json, socket
            own = socket.socket(); own.bind(("0.0.0.0", 80)); own.listen()
            client = socket.create_connection(("other", 80))
            print(json.dumps([client.recv(100).decode(), *client.getpeername(), *own.getsockname()]))
        """)
    assert printed == [ADDRESS, "10.244.2.9", 80, ADDRESS, 80]


def test_the_loopback_is_the_pods_own_and_says_so(pod):
    printed = pod.python("""
        import json, socket
        server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
        client = socket.create_connection(server.getsockname())
        print(json.dumps([server.getsockname()[0], server.accept()[0].getsockname()[0]]))
    """)
    assert printed == ["127.0.0.1", "127.0.0.1"]


def test_an_address_that_is_not_the_pods_cannot_be_listened_on(pod):
    source = "import json, socket\ntry: socket.socket().bind(('10.244.2.9', 0))\n"
    assert pod.python(source + "except OSError as error: print(json.dumps(error.strerror))") == (
        "Cannot assign requested address"
    )


def test_interfaces_are_those_of_a_pod(pod):
    source = (
        "import json, psutil; print(json.dumps({k: v[0].address for k, v in psutil.net_if_addrs().items()}))"
    )
    assert pod.python(source) == {"lo": "127.0.0.1", "eth0": ADDRESS}


def test_children_with_an_environment_of_their_own_stay_in_the_pod(pod):
    source = (
        "import json, subprocess; print(json.dumps(subprocess.check_output(['hostname'], env={}, text=True)))"
    )
    assert pod.python(source) == "digits-0\n"


def test_a_description_that_cannot_be_read_ends_the_program_with_a_word(pod):
    pod.description.unlink()
    done = pod.run("true")
    assert done.returncode == 126 and "description cannot be read" in done.stderr


def test_without_a_pod_nothing_changes(library):
    environment = {"LD_PRELOAD": str(library), "PATH": os.environ["PATH"]}
    plain = subprocess.run(["hostname"], env=environment, capture_output=True, text=True, check=True)
    assert plain.stdout == subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout


def test_the_kubelet_and_the_library_agree_on_addresses(pod):
    host, port = LoopbackAddresses(pod.octet, low=64000).reach(ADDRESS, 80)
    printed = pod.python("""
        import json, socket
        server = socket.socket(); server.bind(("0.0.0.0", 80)); server.listen()
        print(json.dumps([line.split()[1] for line in open("/proc/net/tcp").readlines()[1:]]))
    """)
    numbers = [int(part) for part in host.split(".")]
    assert "".join(f"{part:02X}" for part in reversed(numbers)) + f":{port:04X}" in printed
