"""A pod's /etc/hosts, host name and resolver, against what a kubelet writes."""

import pytest

from localkube.kubelet.pods import network_files
from localkube.kubelet.pods.network_files import HostnameError, Resolver, resolver

NODE = Resolver(("10.244.255.254",), ("office.example",), ("timeout:1",))
CLUSTER = "10.244.0.1"


def pod(name="web", **spec):
    return {"metadata": {"name": name, "namespace": "space"}, "spec": spec}


def hosts(manifest):
    name, full = network_files.hostname(manifest, node="node-0")
    return network_files.hosts(
        manifest, name=name, full=full, addresses=["10.244.1.2"], of_node="127.0.0.1 box\n"
    )


def resolved(**spec):
    resolver_lines, events = resolver(pod(**spec), cluster=CLUSTER, of_node=NODE)
    assert events == []
    return resolver_lines.text()


def test_hosts_have_the_kubelets_first_lines_and_the_comment_of_aliases():
    aliases = [{"ip": "10.0.0.7", "hostnames": ["db", "db.example"]}, {"ip": "10.0.0.8", "hostnames": ["mq"]}]
    assert hosts(pod(subdomain="s", hostAliases=aliases)) == (
        "# Kubernetes-managed hosts file.\n"
        "127.0.0.1\tlocalhost\n"
        "::1\tlocalhost ip6-localhost ip6-loopback\n"
        "fe00::0\tip6-localnet\n"
        "fe00::0\tip6-mcastprefix\n"
        "fe00::1\tip6-allnodes\n"
        "fe00::2\tip6-allrouters\n"
        "10.244.1.2\tweb.s.space.svc.cluster.local\tweb\n"
        "\n"
        "# Entries added by HostAliases.\n"
        "10.0.0.7\tdb\tdb.example\n"
        "10.0.0.8\tmq\n"
    )
    assert hosts(pod()).endswith("10.244.1.2\tweb\n")


def test_a_pod_in_the_nodes_network_gets_the_nodes_hosts_and_name():
    manifest = pod(hostNetwork=True, hostAliases=[{"ip": "10.0.0.7", "hostnames": ["db"]}])
    assert network_files.hostname(manifest, node="node-0") == ("node-0", "")
    assert hosts(manifest) == (
        "# Kubernetes-managed hosts file (host network).\n127.0.0.1 box\n"
        "\n# Entries added by HostAliases.\n10.0.0.7\tdb\n"
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ("web", "")),
        ({"hostname": "front"}, ("front", "")),
        ({"hostname": "front", "subdomain": "s"}, ("front", "front.s.space.svc.cluster.local")),
        ({"subdomain": "s", "setHostnameAsFQDN": True}, ("web.s.space.svc.cluster.local",) * 2),
        ({"setHostnameAsFQDN": True}, ("web", "")),
        ({"hostnameOverride": "other.example", "subdomain": "s"}, ("other.example", "")),
    ],
)
def test_the_host_name_follows_the_specification(spec, expected):
    assert network_files.hostname(pod(**spec), node="node-0") == expected


def test_a_long_name_is_cut_where_a_host_name_may_end():
    assert network_files.hostname(pod("a" * 62 + "-bcd"), node="node-0") == ("a" * 62, "")


def test_a_full_name_that_the_kernel_does_not_take_is_refused():
    with pytest.raises(HostnameError, match="64 characters is the max, 85 characters requested"):
        network_files.hostname(pod("a" * 50, subdomain="sub-domain", setHostnameAsFQDN=True), node="node-0")


WITHIN = "search space.svc.cluster.local svc.cluster.local cluster.local\n"
CLUSTER_FIRST = f"{WITHIN}nameserver 10.244.0.1\noptions ndots:5\n"
NDOTS = [{"name": "ndots", "value": "1"}]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, CLUSTER_FIRST),
        ({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True}, CLUSTER_FIRST),
        ({"dnsPolicy": "Default"}, "search office.example\nnameserver 10.244.255.254\noptions timeout:1\n"),
        ({"hostNetwork": True}, "search office.example\nnameserver 10.244.255.254\noptions timeout:1\n"),
        (
            {
                "dnsPolicy": "None",
                "dnsConfig": {
                    "nameservers": ["1.1.1.1"],
                    "searches": ["resolv.conf.local"],
                    "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
                },
            },
            "search resolv.conf.local\nnameserver 1.1.1.1\noptions ndots:2 edns0\n",
        ),
        (
            {"dnsConfig": {"nameservers": [CLUSTER, "9.9.9.9"], "options": NDOTS}},
            f"{WITHIN}nameserver 10.244.0.1\nnameserver 9.9.9.9\noptions ndots:1\n",
        ),
    ],
    ids=["cluster", "cluster on the host", "default", "host", "none", "added"],
)
def test_the_resolver_follows_policy_and_configuration(spec, expected):
    assert resolved(**spec) == expected


def test_entries_beyond_a_resolvers_limits_are_dropped_and_reported():
    servers = ["1.0.0.1", "1.0.0.2", "1.0.0.3", "1.0.0.4"]
    searches = [f"{'x' * 60}.{number}" for number in range(40)]
    config = {"nameservers": servers, "searches": searches}
    resolver_lines, events = resolver(pod(dnsPolicy="None", dnsConfig=config), cluster=CLUSTER, of_node=NODE)
    assert resolver_lines.servers == tuple(servers[:3])
    assert len(resolver_lines.searches) == 32
    assert [event.split(",")[0] for event in events] == [
        "Nameserver limits were exceeded",
        "Search Line limits were exceeded",
    ]


def test_a_resolver_is_read_as_glibc_reads_it():
    text = (
        "# by hand\nsearch a.\nnameserver 1.1.1.1\nsearch b c. .\noptions ndots:2\noptions ndots:3 rotate\n"
    )
    assert Resolver.parse(text) == Resolver(("1.1.1.1",), ("b", "c"), ("ndots:3", "rotate"))
