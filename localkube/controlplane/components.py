"""The command line of each control plane component, tuned for a laptop.

Nothing is started here. Arguments hold no secrets, only the names of files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localkube.controlplane import ETCD_QUOTA_BYTES, build, client_credentials
from localkube.controlplane.binaries import ControlPlaneBinaries
from localkube.paths import ClusterPaths, private_dir, write_private, writing

# A garbage collector that runs twice as often costs little at rest and saves a third of the memory.
# A hard limit, GOMEMLIMIT, ends in a spiral of collections.
GO_ENVIRONMENT = {"GOGC": "50"}
# Names a file that the API server removes, to spare itself looking up the roles that etcd begins with.
KNOWN_ROLES = "TRAINYARD_KNOWN_ROLES"
ANONYMOUS_PATHS = ("/livez", "/readyz", "/healthz")
QPS, BURST = 2000, 4000
# Kubernetes waits 50 s before it calls a silent node NotReady. That is long for a lesson in which one is
# switched off; three renewals of the kubelet's leases (``node.heartbeat``) must fit in.
NODE_GRACE, NODE_CHECK = "16s", "2s"
# The shortest that metrics-server takes: it answers after its second look at the nodes.
METRICS_RESOLUTION, METRICS_TIMEOUT = "10s", "9s"
# Our etcd elects its only member at once, so that it need not wake up ten times a second for elections.
ETCD_AT_REST = {"heartbeat-interval": 500, "election-timeout": 5000, "backend-batch-interval": "1s"}
# They tell several API servers apart, and take a second of a start.
FEATURES_OFF = ("APIServerIdentity", "UnknownVersionInteroperabilityProxy")
# Gangs, which may be preempted as a whole or share a claim: beta, and off by default. Gangs that need
# one rack: alpha.
WORKLOADS = "GenericWorkload=true,DRAWorkloadResourceClaims=true,TopologyAwareWorkloadScheduling=true"
WORKLOAD_API = "scheduling.k8s.io/v1beta1=true"

# The others are started when the API server answers at all, whatever the status: readiness comes later, and
# all at once is slower still on two cores. The scheduler would request what is forbidden before
# readiness, and again a second later.
STARTS_AFTER = {"etcd": "", "kube-apiserver": "", "kube-scheduler": "readiness"}
# In the cluster's directory, which only its owner can enter, so that etcd needs no certificates. Relative,
# because the path of a Unix socket has at most 108 bytes.
ETCD_SOCKET, ETCD_PEER_SOCKET = "etcd.sock", "etcd-peer.sock"
# All that Kubernetes starts by default. The ranges of nodes' pods are the kubelet's here.
CONTROLLERS = ("*", "-node-ipam-controller")


@dataclass(frozen=True)
class ListenAddresses:
    """Where the components listen; by default as in the cluster's own network namespace.

    ``egress`` is a Unix socket, relative to the cluster's directory, through which the API server reaches
    nodes, pods and Services in plain mode. ``token_webhook`` is the URL that authenticates foreign tokens.
    """

    api_bind: str = "0.0.0.0"
    api_port: int = 6443
    advertise: str = "10.244.0.1"
    metrics_port: int = 4443
    services: str = "10.96.0.0/16"
    loopback: str = "127.0.0.1"
    egress: str | None = None
    token_webhook: str | None = None

    @property
    def api(self) -> str:
        return f"https://{self.loopback}:{self.api_port}"


@dataclass(frozen=True)
class ComponentCommand:
    """The command of one component, to be run in the cluster's directory.

    Attributes:
        argv: The command, free of secrets.
        starts_after: ``answer`` or ``readiness`` of the API server, or empty.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    starts_after: str = ""


def commands(
    paths: ClusterPaths, control_plane: ControlPlaneBinaries, *, addresses: ListenAddresses | None = None
) -> list[ComponentCommand]:
    """Write the components' configuration files and return their commands in starting order.

    The certificates must have been issued.
    """
    addresses = addresses or ListenAddresses()
    files = _write_configuration(paths, addresses)
    # A released etcd would wait for its election timeout at each start.
    is_ours = Path(control_plane.programs["etcd"][0]).name == build.PROGRAM
    flags = {
        "etcd": _etcd(paths) | (ETCD_AT_REST if is_ours else {}),
        "kube-apiserver": _api_server(paths, addresses, files),
        "kube-controller-manager": _controller_manager(paths, files),
        "kube-scheduler": {
            "config": files["scheduler-settings"],
            "secure-port": 0,
            "feature-gates": WORKLOADS,
        },
    }
    if control_plane.has("metrics-server"):
        flags["metrics-server"] = _metrics_server(paths, addresses, files)
    words = {name: [f"--{flag}={value}" for flag, value in flags[name].items()] for name in flags}
    env = GO_ENVIRONMENT | {KNOWN_ROLES: str(paths.known_roles)}
    return [
        ComponentCommand(
            name, tuple(control_plane.argv(name, *words[name])), env, STARTS_AFTER.get(name, "answer")
        )
        for name in flags
    ]


def _etcd(paths: ClusterPaths) -> dict[str, object]:
    clients, peers = f"unix://{ETCD_SOCKET}", f"unix://{ETCD_PEER_SOCKET}"
    return {
        "name": "trainyard",
        "data-dir": paths.etcd,
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"trainyard={peers}",
        # A power cut may lose a learner's cluster; every write would otherwise wait for the disk.
        "unsafe-no-fsync": "true",
        "snapshot-count": 5000,
        # The database is compacted every five minutes by the API server, and where that cannot write any
        # more by ``etcd_maintenance``, which also gives free space back.
        "quota-backend-bytes": ETCD_QUOTA_BYTES,
        # Logs are 64 MB each, and five of them are kept otherwise.
        "max-wals": 2,
        "max-snapshots": 2,
        "log-level": "warn",
    }


def _api_server(
    paths: ClusterPaths, addresses: ListenAddresses, files: Mapping[str, Path]
) -> dict[str, object]:
    pki = paths.pki
    more: dict[str, object] = {"egress-selector-config-file": files["egress"]} if addresses.egress else {}
    if addresses.token_webhook:
        more |= {
            "authentication-token-webhook-config-file": files["token-webhook"],
            "authentication-token-webhook-version": "v1",
            # Whose rights end is to be out soon; the server is on the same machine.
            "authentication-token-webhook-cache-ttl": "5s",
        }
    return more | {
        "bind-address": addresses.api_bind,
        "secure-port": addresses.api_port,
        "advertise-address": addresses.advertise,
        # The kubelet writes the endpoints of the Service `kubernetes`.
        "endpoint-reconciler-type": "none",
        "service-cluster-ip-range": addresses.services,
        "allow-privileged": "true",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "authentication-config": files["authentication"],
        "client-ca-file": pki / "ca.crt",
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "etcd-servers": f"unix://{ETCD_SOCKET}",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": pki / "sa.pub",
        "service-account-signing-key-file": pki / "sa.key",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-client-certificate": pki / "apiserver-kubelet-client.crt",
        "kubelet-client-key": pki / "apiserver-kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",
        "requestheader-client-ca-file": pki / "front-proxy-ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": pki / "front-proxy-client.crt",
        "proxy-client-key-file": pki / "front-proxy-client.key",
        "enable-aggregator-routing": "true",
        # Attendees of a workshop share a cluster: none of them keeps the others, or the controllers, waiting.
        "enable-priority-and-fairness": "true",
        "profiling": "false",
        "etcd-count-metric-poll-period": "0",
        "etcd-db-metric-poll-interval": "0",
        "feature-gates": ",".join((*(f"{feature}=false" for feature in FEATURES_OFF), WORKLOADS)),
        "runtime-config": WORKLOAD_API,
    }


def _controller_manager(paths: ClusterPaths, files: Mapping[str, Path]) -> dict[str, object]:
    return {
        "kubeconfig": files["controller-manager"],
        "secure-port": 0,
        "leader-elect": "false",
        "controllers": ",".join(CONTROLLERS),
        "feature-gates": WORKLOADS,
        "use-service-account-credentials": "true",
        "root-ca-file": paths.pki / "ca.crt",
        # The CertificateSigningRequests that somebody approves.
        "cluster-signing-cert-file": paths.pki / "ca.crt",
        "cluster-signing-key-file": paths.pki / "ca.key",
        "service-account-private-key-file": paths.pki / "sa.key",
        "cluster-name": paths.name,
        "kube-api-qps": QPS,
        "kube-api-burst": BURST,
        "kube-api-content-type": "application/vnd.kubernetes.protobuf",
        "node-monitor-grace-period": NODE_GRACE,
        "node-monitor-period": NODE_CHECK,
        # People wait for an autoscaler; by default it looks every 15 s, and takes back after five minutes.
        "horizontal-pod-autoscaler-sync-period": "5s",
        "horizontal-pod-autoscaler-downscale-stabilization": "60s",
        "profiling": "false",
    }


def _metrics_server(
    paths: ClusterPaths, addresses: ListenAddresses, files: Mapping[str, Path]
) -> dict[str, object]:
    pki, own_files = paths.pki, files["metrics-server"]
    return {
        "kubeconfig": own_files,
        "authentication-kubeconfig": own_files,
        "authorization-kubeconfig": own_files,
        # What it would look up in the cluster: who may pass on requests in the name of users.
        "authentication-skip-lookup": "true",
        "client-ca-file": pki / "ca.crt",
        "requestheader-client-ca-file": pki / "front-proxy-ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "bind-address": addresses.loopback if addresses.egress else addresses.advertise,
        "secure-port": addresses.metrics_port,
        "tls-cert-file": pki / "metrics-server.crt",
        "tls-private-key-file": pki / "metrics-server.key",
        # Without a network of the cluster's own, nodes have an address outside it.
        "kubelet-preferred-address-types": "ExternalIP" if addresses.egress else "InternalIP",
        "kubelet-use-node-status-port": "true",
        "metric-resolution": METRICS_RESOLUTION,
        "kubelet-request-timeout": METRICS_TIMEOUT,
        "profiling": "false",
    }


def _write_configuration(paths: ClusterPaths, addresses: ListenAddresses) -> dict[str, Path]:
    private_dir(paths.root)
    folder = private_dir(paths.root / "config")
    files = {
        "authentication": folder / "authentication.json",
        "scheduler-settings": folder / "scheduler.json",
        "controller-manager": folder / "controller-manager.kubeconfig",
        "scheduler": folder / "scheduler.kubeconfig",
        "metrics-server": folder / "metrics-server.kubeconfig",
    }
    for name in ("controller-manager", "scheduler", "metrics-server"):
        client_credentials.write_kubeconfig(
            files[name], server=addresses.api, name=paths.name, pki=paths.pki, user=name, embedded=False
        )
    if addresses.egress:
        files["egress"] = folder / "egress.json"
        _write_json(files["egress"], _egress_selector(addresses.egress))
    if addresses.token_webhook:
        files["token-webhook"] = folder / "token-webhook.json"
        _write_json(files["token-webhook"], _token_webhook(addresses.token_webhook))
    _write_json(
        files["authentication"],
        {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthenticationConfiguration",
            "anonymous": {"enabled": True, "conditions": [{"path": path} for path in ANONYMOUS_PATHS]},
        },
    )
    _write_json(
        files["scheduler-settings"],
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(files["scheduler"]), "qps": QPS, "burst": BURST},
            "leaderElection": {"leaderElect": False},
            "enableProfiling": False,
        },
    )
    return files


def _egress_selector(socket: str) -> dict[str, object]:
    connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": socket}}}
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }


def _token_webhook(url: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "judge", "cluster": {"server": url}}],
        "users": [{"name": "api-server", "user": {}}],
        "contexts": [{"name": "judge", "context": {"cluster": "judge", "user": "api-server"}}],
        "current-context": "judge",
    }


def _write_json(path: Path, content: dict[str, object]) -> None:
    with writing(path):
        write_private(path, json.dumps(content, indent=2))
