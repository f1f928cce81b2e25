"""A pod's host name, /etc/hosts, /etc/hostname and /etc/resolv.conf, in the kubelet's form.

Pure, but for ``write``. One difference from the kubelet: the search domains of the machine are those of
``dnsPolicy: Default`` alone. With ``ClusterFirst`` every name that the cluster does not have would else be
looked up in them as well, and a rank that looks for a peer too early would wait for a server of an office.

Source: https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from localkube.api_path import Object

DOMAIN = "cluster.local"
MAX_HOSTNAME, MAX_FQDN = 63, 64
# Of what glibc's resolver reads.
MAX_SERVERS, MAX_SEARCHES, MAX_SEARCH_CHARACTERS, MAX_DOMAIN = 3, 32, 2048, 253
HOSTS = """\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""
HOSTS_OF_NODE = "# Kubernetes-managed hosts file (host network).\n"


class HostnameError(Exception):
    """The pod's host name is not one that a kernel takes."""


def hostname(pod: Object, *, node: str) -> tuple[str, str]:
    """Compute a pod's host name, and its name in the cluster's DNS if it has one.

    Args:
        node: The node's name, which pods in its network have as theirs.

    Example:
        >>> pod = {"metadata": {"name": "a", "namespace": "n"}, "spec": {"hostname": "b", "subdomain": "s"}}
        >>> hostname(pod, node="node-0")
        ('b', 'b.s.n.svc.cluster.local')
    """
    spec, metadata = pod["spec"], pod["metadata"]
    if spec.get("hostnameOverride"):
        return _truncated(spec["hostnameOverride"]), ""
    if spec.get("hostNetwork"):
        return node, ""
    name, full = _truncated(spec.get("hostname") or metadata["name"]), ""
    if spec.get("subdomain"):
        full = f"{name}.{spec['subdomain']}.{metadata['namespace']}.svc.{DOMAIN}"
    if full and spec.get("setHostnameAsFQDN"):
        if len(full) > MAX_FQDN:
            raise HostnameError(
                f'failed to construct FQDN from pod hostname and cluster domain, FQDN "{full}" is too long '
                f"({MAX_FQDN} characters is the max, {len(full)} characters requested)"
            )
        return full, full
    return name, full


def _truncated(name: str) -> str:
    return name if len(name) <= MAX_HOSTNAME else name[:MAX_HOSTNAME].rstrip("-.")


def hosts(pod: Object, *, name: str, full: str, addresses: Iterable[str], of_node: str = "") -> str:
    """Format /etc/hosts.

    Args:
        name: The pod's host name; ``full`` its name in DNS, if it has one.
        of_node: The node's file, which pods in its network get in place of a new one.
    """
    text = HOSTS_OF_NODE + of_node
    if not pod["spec"].get("hostNetwork"):
        names = "\t".join(dict.fromkeys(filter(None, (full, name.partition(".")[0] if full else name))))
        text = HOSTS + "".join(f"{address}\t{names}\n" for address in addresses)
    aliases = pod["spec"].get("hostAliases") or ()
    lines = [f"{alias['ip']}\t" + "\t".join(alias.get("hostnames") or ()) for alias in aliases]
    return text + ("\n# Entries added by HostAliases.\n" + "\n".join(lines) + "\n" if lines else "")


@dataclass(frozen=True)
class Resolver:
    """The content of a resolv.conf: addresses of servers, search domains, and options as they are written."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Resolver":
        """Read a resolv.conf; of several ``search`` lines the last one counts."""
        servers, searches = [], []
        options: dict[str, str] = {}
        for line in text.splitlines():
            match line.split():
                case ["nameserver", server, *_]:
                    servers.append(server)
                case ["search", *domains]:
                    searches = [domain.rstrip(".") for domain in domains if domain != "."]
                case ["options", *words]:
                    options |= {word.partition(":")[0]: word for word in words}
        return cls(tuple(servers), tuple(searches), tuple(options.values()))

    def text(self) -> str:
        lines = [f"search {' '.join(self.searches)}"] if self.searches else []
        lines += [f"nameserver {server}" for server in self.servers]
        lines += [f"options {' '.join(self.options)}"] if self.options else []
        return "".join(f"{line}\n" for line in lines)


def resolver(pod: Object, *, cluster: str, of_node: Resolver) -> tuple[Resolver, list[str]]:
    """Compute a pod's resolver by its ``dnsPolicy`` and ``dnsConfig``.

    Args:
        cluster: The address of the cluster's DNS.
        of_node: That of the pod's node.

    Returns:
        The resolver, and the messages of Events ``DNSConfigForming`` about what was left out.
    """
    spec = pod["spec"]
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    if policy == "None":
        base = Resolver()
    elif policy == "Default" or (policy == "ClusterFirst" and spec.get("hostNetwork")):
        base = of_node
    else:
        namespace_domain = f"{pod['metadata']['namespace']}.svc.{DOMAIN}"
        base = Resolver((cluster,), (namespace_domain, f"svc.{DOMAIN}", DOMAIN), ("ndots:5",))
    config = spec.get("dnsConfig") or {}
    options = {word.partition(":")[0]: word for word in base.options}
    for option in config.get("options") or ():
        name, value = option["name"], option.get("value")
        options[name] = f"{name}:{value}" if value else name
    servers = tuple(dict.fromkeys((*base.servers, *(config.get("nameservers") or ()))))
    searches = tuple(dict.fromkeys((*base.searches, *(config.get("searches") or ()))))
    return _within_limits(Resolver(servers, searches, tuple(options.values())))


def _within_limits(resolver: Resolver) -> tuple[Resolver, list[str]]:
    left_out = []
    servers = resolver.servers[:MAX_SERVERS]
    if servers != resolver.servers:
        left_out.append(
            "Nameserver limits were exceeded, some nameservers have been omitted, "
            f"the applied nameserver line is: {' '.join(servers)}"
        )
    searches = tuple(search for search in resolver.searches[:MAX_SEARCHES] if len(search) <= MAX_DOMAIN)
    while len(" ".join(searches)) > MAX_SEARCH_CHARACTERS:
        searches = searches[:-1]
    if searches != resolver.searches:
        left_out.append(
            "Search Line limits were exceeded, some search paths have been omitted, "
            f"the applied search line is: {' '.join(searches)}"
        )
    return replace(resolver, servers=servers, searches=searches), left_out


def of_machine(name: str) -> str:
    """Read /etc/hosts or /etc/resolv.conf of the machine, which are its nodes' as well."""
    try:
        return Path("/etc", name).read_text(errors="replace")
    except OSError:
        return ""


def write(directory: Path, files: Mapping[str, str]) -> list[Path]:
    """Write files that containers mount as theirs; return their paths."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = {directory / name: text for name, text in files.items()}
    for path, text in paths.items():
        path.write_text(text)
        path.chmod(0o644)
    return list(paths)
