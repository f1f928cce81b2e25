"""Plain mode's half of the agent: what a container's mounts and names become without namespaces.

A container's order is made as in a site, and then translated: each mount becomes a line in the file that the
preload library reads, so that programs find volumes, hosts file and scratch directories in their places. A
program that is linked statically has no use for a preload library; it gets real paths in its arguments
instead, and an Event says what it must do without.
"""

import json
import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localkube.network.addresses import LoopbackAddresses
from localkube.runtime.container import find_program
from localkube.runtime.plain import real_path

NAME_SERVER, API_SERVER = "10.244.0.1", ("10.244.0.1", 6443)
SHARED_MEMORY = "/dev/shm"
TOKEN_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
# The same directory by its older name, which the host's symbolic link says and the pod's own files do not.
OTHER_NAMES = {"/run": "/var/run"}
PROGRAM_INTERPRETER = 3
# All of an address's own interfaces, in a listening program's arguments.
_ANY = re.compile(r"(?<![\d.])0\.0\.0\.0(?![\d.])")


@dataclass(frozen=True)
class PlainPods:
    """Translates orders of containers.

    Args:
        addresses: Of this cluster on the loopback interface.
        preload: The library.
    """

    addresses: LoopbackAddresses
    preload: Path

    def translate(
        self,
        order: dict[str, Any],
        *,
        directory: Path,
        address: str,
        hostname: str,
        namespace: str,
        tell: Callable[[str], None],
    ) -> None:
        """Make a site's order one of plain mode, in place.

        Args:
            order: As ``containers.order`` makes it.
            directory: For this start of the container alone; removed with the pod.
            address: The pod's.
            hostname: The pod's.
            namespace: The pod's.
            tell: Called with a sentence for what cannot be kept.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths = _paths(order["root"]["mounts"], directory)
        cwd = order["cwd"]
        real = real_path(cwd, _pairs(paths))
        if cwd == "/" or not os.path.isdir(real):
            # Many images start in /, which would be this machine's own.
            real = str(directory / "cwd")
            paths |= {} if cwd == "/" else {cwd: (real, False)}
            os.makedirs(real, exist_ok=True)
        pairs = _pairs(paths)
        description = directory / "pod"
        description.write_text(self._describe(paths, address, hostname, namespace))
        order["plain"] = {"pod": str(description), "cwd": real, "paths": pairs}
        env = order["env"]
        if is_static(real_path(order["argv"][0], pairs), env):
            self._help_static(order, paths, directory, address, tell)
            return
        env["LD_PRELOAD"] = " ".join(filter(None, (str(self.preload), env.get("LD_PRELOAD"))))
        env["TRAINYARD_POD"] = str(description)

    def _describe(
        self, paths: Mapping[str, tuple[str, bool]], address: str, hostname: str, namespace: str
    ) -> str:
        """Return what ``preload/pod.c`` reads."""
        lines = [
            ("address", address),
            ("octet", str(self.addresses.octet)),
            ("low", str(self.addresses.low)),
            ("dns", NAME_SERVER),
            ("hostname", hostname),
        ]
        lines += [
            ("search", domain)
            for domain in (f"{namespace}.svc.cluster.local", "svc.cluster.local", "cluster.local")
        ]
        lines += [("host", name, ip) for name, ip in _hosts(paths["/etc/hosts"][0])]
        lines += [("path", "ro" if ro else "rw", seen, real) for seen, (real, ro) in paths.items()]
        return "".join("\t".join(line) + "\n" for line in lines)

    def _help_static(
        self,
        order: dict[str, Any],
        paths: Mapping[str, tuple[str, bool]],
        directory: Path,
        address: str,
        tell: Callable[[str], None],
    ) -> None:
        """Give a statically linked program what it can use: real paths, addresses, a kubeconfig."""
        own, _ = self.addresses.reach(address, 0)
        order["argv"] = [_ANY.sub(own, word) for word in order["argv"]]
        volumes = {seen: real for seen, (real, _) in paths.items()}
        order["argv"] = [order["argv"][0], *(_in_words(word, volumes) for word in order["argv"][1:])]
        env = {name: _in_words(value, volumes) for name, value in order["env"].items() if name != "PATH"}
        host, port = self.addresses.reach(*API_SERVER)
        env |= {
            "PATH": order["env"]["PATH"],
            "TMPDIR": volumes["/tmp"],
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
        }
        if TOKEN_DIRECTORY in volumes and "KUBECONFIG" not in env:
            kubeconfig = directory / "kubeconfig"
            kubeconfig.write_text(json.dumps(_kubeconfig(f"https://{host}:{port}", volumes[TOKEN_DIRECTORY])))
            kubeconfig.chmod(0o600)
            env["KUBECONFIG"] = str(kubeconfig)
        order["env"] = env
        tell(
            f"{os.path.basename(order['argv'][0])} is linked statically: in plain mode it listens on this "
            "machine's own addresses where its arguments do not say 0.0.0.0, sees volumes only where they "
            "name them, and knows no names of the cluster"
        )


def _paths(mounts: list[Mapping[str, Any]], directory: Path) -> dict[str, tuple[str, bool]]:
    """Return, for each path that the pod sees, the real one and whether it is read-only."""
    paths: dict[str, tuple[str, bool]] = {}
    for number, entry in enumerate(mounts):
        target = os.path.normpath(entry["target"])
        if entry["kind"] == "bind":
            paths[target] = (entry["source"], bool(entry.get("read_only")))
        elif target != SHARED_MEMORY:
            made = directory / f"scratch-{number}"
            made.mkdir(mode=0o700, exist_ok=True)
            paths[target] = (str(made), False)
    for name, other in OTHER_NAMES.items():
        if name in paths:
            paths.setdefault(other, paths[name])
    return paths


def _pairs(paths: Mapping[str, tuple[str, bool]]) -> list[tuple[str, str]]:
    return [(seen, real) for seen, (real, _) in paths.items()]


def _hosts(path: str) -> list[tuple[str, str]]:
    """Return the names and addresses of a hosts file, the loopback's excepted."""
    lines = (line.split() for line in Path(path).read_text().splitlines())
    pairs = [(name, words[0]) for words in lines for name in words[1:]]
    return [(name, ip) for name, ip in pairs if not ip.startswith("127.") and ":" not in ip]


def _in_words(text: str, paths: Mapping[str, str]) -> str:
    """Return ``text`` with the paths of volumes replaced, where they stand alone or after a sign.

    Example:
        >>> _in_words("--cert=/certs/tls.crt", {"/certs": "/real"})
        '--cert=/real/tls.crt'
    """
    for seen in sorted(paths, key=len, reverse=True):
        text = re.sub(rf"(?<![^=:,]){re.escape(seen)}(?=$|[/:,])", paths[seen].replace("\\", r"\\\\"), text)
    return text


def is_static(command: str, env: Mapping[str, str]) -> bool:
    """Return whether a command is a program that is linked statically; a script or an unknown one is not."""
    try:
        with open(find_program(command, dict(env), ""), "rb") as file:
            header = file.read(64)
            if header[:5] != b"\x7fELF\x02":
                return False
            (offset,), (size, count) = (
                struct.unpack_from("<Q", header, 32),
                struct.unpack_from("<HH", header, 54),
            )
            file.seek(offset)
            table = file.read(size * count)
    except OSError:
        return False
    kinds = {struct.unpack_from("<I", table, size * each)[0] for each in range(count)}
    return PROGRAM_INTERPRETER not in kinds


def _kubeconfig(server: str, account: str) -> dict[str, Any]:
    """Return the settings of a pod's own account for a client library."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "cluster", "cluster": {"server": server, "certificate-authority": f"{account}/ca.crt"}}
        ],
        "users": [{"name": "account", "user": {"tokenFile": f"{account}/token"}}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "account"}}],
        "current-context": "cluster",
    }
