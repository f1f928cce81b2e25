"""The names of a cluster are those of the Kubernetes DNS specification, and follow every change at once."""

import pytest

from localkube.network.dns_zone import ResourceRecord, Zone
from localkube.network.service_records import limit_ports

from ..node.fake_informer import FakeInformer, endpoint, pod, service, slice_of

JOB = {"batch.kubernetes.io/job-name": "ddp"}


@pytest.fixture
def services():
    return FakeInformer(
        service("web", cluster_ip="10.96.0.20", ports=[("http", 80, "TCP"), (None, 81, "TCP")]),
        service("ddp", selector=JOB, ports=[("rendezvous", 29500, "TCP")]),
        service("empty"),
        service("out", cluster_ip=None, type="ExternalName", externalName="Data.Example.org."),
    )


@pytest.fixture
def slices():
    return FakeInformer()


@pytest.fixture
def pods():
    return FakeInformer()


@pytest.fixture
def zone(services, slices, pods):
    return Zone(services=services, slices=slices, pods=pods)


def values(zone, name, kind="A"):
    """Return the values of a name, None if it does not exist."""
    answer = zone.lookup(name, kind)
    return [record.value for record in answer.records] if answer.exists else None


def test_a_name_without_records_has_no_data_and_an_unknown_one_nxdomain(zone):
    assert values(zone, "web.default.svc.cluster.local", "AAAA") == []
    for name in ("cluster.local", "svc.cluster.local", "default.svc.cluster.local", "pod.cluster.local"):
        assert values(zone, name) == []
    assert values(zone, "_tcp.web.default.svc.cluster.local") == []
    assert values(zone, "dns-version.cluster.local", "TXT") == ["1.1.0"]
    for name in ("nobody.default.svc", "web.other.svc", "nowhere.svc", "a.b.c.d.e"):
        assert values(zone, f"{name}.cluster.local") is None


def test_a_named_port_has_a_service_record_and_an_unnamed_one_has_none(zone):
    answer = zone.lookup("_http._tcp.web.default.svc.cluster.local", "SRV")
    assert [record.value for record in answer.records] == [(80, "web.default.svc.cluster.local")]
    assert answer.additional == (ResourceRecord("web.default.svc.cluster.local", "A", "10.96.0.20"),)
    assert values(zone, "_http._udp.web.default.svc.cluster.local", "SRV") is None
    assert values(zone, "_._tcp.web.default.svc.cluster.local", "SRV") is None


def test_an_external_name_is_an_alias_for_every_kind(zone):
    for kind in ("A", "AAAA", "CNAME"):
        assert values(zone, "out.default.svc.cluster.local", kind) == ["data.example.org"]


def test_a_headless_service_without_ready_endpoints_is_denied(zone, slices):
    assert values(zone, "empty.default.svc.cluster.local") is None
    slices.put(slice_of("empty", endpoint("10.244.1.2", ready=False)))
    assert values(zone, "empty.default.svc.cluster.local") is None


def test_a_headless_service_has_the_addresses_and_names_of_its_endpoints(zone, slices):
    ports = [("rendezvous", 29500, "TCP")]
    slices.put(slice_of("ddp", endpoint("10.244.1.2", hostname="ddp-0"), endpoint("10.244.2.2"), ports=ports))
    slices.put(slice_of("ddp", endpoint("10.244.3.2", hostname="ddp-2"), ports=ports, suffix="other"))
    base = "ddp.default.svc.cluster.local"
    assert values(zone, base) == ["10.244.1.2", "10.244.2.2", "10.244.3.2"]
    assert values(zone, f"ddp-0.{base}") == ["10.244.1.2"]
    assert values(zone, f"10-244-2-2.{base}") == ["10.244.2.2"]
    assert values(zone, f"ddp-1.{base}") is None
    assert values(zone, f"_rendezvous._tcp.{base}", "SRV") == [
        (29500, f"ddp-0.{base}"),
        (29500, f"10-244-2-2.{base}"),
        (29500, f"ddp-2.{base}"),
    ]
    assert values(zone, "2.1.244.10.in-addr.arpa", "PTR") == [f"ddp-0.{base}"]


def test_a_ready_pod_is_found_before_its_endpoint_slice_is_written(zone, pods):
    name = "ddp-0.ddp.default.svc.cluster.local"
    pods.put(pod("ddp-0-x", hostname="ddp-0", subdomain="ddp", labels=JOB, ready=False))
    assert values(zone, name) is None
    pods.put(pod("ddp-0-x", address="10.244.1.2", hostname="ddp-0", subdomain="ddp", labels=JOB))
    assert values(zone, name) == ["10.244.1.2"]
    assert values(zone, "ddp.default.svc.cluster.local") == ["10.244.1.2"]
    assert values(zone, "_rendezvous._tcp.ddp.default.svc.cluster.local", "SRV") == [(29500, name)]


def test_a_pod_has_a_name_in_a_service_that_selects_it(zone, pods, services):
    name = "ddp-0.ddp.default.svc.cluster.local"
    pods.put(pod("x", address="10.244.1.2", hostname="ddp-0", subdomain="ddp", labels={"app": "other"}))
    assert values(zone, name) is None
    pods.put(pod("x", address="10.244.1.2", hostname="ddp-0", subdomain="ddp", labels=JOB, ready=False))
    assert values(zone, name) is None
    services.put(service("ddp", selector=JOB, publishNotReadyAddresses=True))
    assert values(zone, name) == ["10.244.1.2"]


def test_a_replaced_pod_leaves_its_name_to_the_new_one_before_the_slice_knows(zone, pods, slices):
    old = pod("ddp-0-x", address="10.244.1.2", hostname="ddp-0", subdomain="ddp", labels=JOB)
    pods.put(old)
    slices.put(slice_of("ddp", endpoint("10.244.1.2", hostname="ddp-0", pod="ddp-0-x")))
    assert values(zone, "ddp-0.ddp.default.svc.cluster.local") == ["10.244.1.2"]
    pods.put(pod("ddp-0-x", address="10.244.1.2", hostname="ddp-0", labels=JOB, phase="Failed", ready=False))
    pods.put(pod("ddp-0-y", address="10.244.1.9", hostname="ddp-0", subdomain="ddp", labels=JOB))
    assert values(zone, "ddp-0.ddp.default.svc.cluster.local") == ["10.244.1.9"]
    pods.drop("default", "ddp-0-x")
    assert values(zone, "ddp-0.ddp.default.svc.cluster.local") == ["10.244.1.9"]


def test_pods_that_were_not_listed_yet_do_not_hide_endpoints(zone, pods, slices):
    pods.synced.clear()
    slices.put(slice_of("ddp", endpoint("10.244.1.2", hostname="ddp-0", pod="ddp-0-x")))
    assert values(zone, "ddp-0.ddp.default.svc.cluster.local") == ["10.244.1.2"]


def test_a_pod_has_the_name_of_its_address(zone, pods):
    pods.put(pod("x", address="10.244.1.2"))
    assert values(zone, "10-244-1-2.default.pod.cluster.local") == ["10.244.1.2"]
    assert values(zone, "10-244-1-3.default.pod.cluster.local") is None
    assert values(zone, "10-244-1-2.other.pod.cluster.local") is None


def test_only_queries_about_foreign_names_are_forwarded(zone):
    assert values(zone, "20.0.96.10.in-addr.arpa", "PTR") == ["web.default.svc.cluster.local"]
    assert values(zone, "9.9.244.10.in-addr.arpa", "PTR") is None
    for name in ("9.9.244.10.in-addr.arpa", "example.org.cluster.local"):
        assert zone.owns(name)
    for name in ("8.8.8.8.in-addr.arpa", "244.10.in-addr.arpa", "example.org", "notcluster.local"):
        assert not zone.owns(name)


def test_short_names_of_peers_are_denied_here_rather_than_asked_outside(zone):
    for name in ("ddp-0.ddp", "web.default.svc", "default.svc"):
        assert zone.owns(name, "default")
        assert values(zone, name) is None
    for name in ("ddp", "example.web", "ddp-0.ddp.org"):
        assert not zone.owns(name, "default")


@pytest.mark.parametrize("top", ["org", "com", "net"])
def test_a_service_hides_a_top_level_domain_only_in_its_namespace(zone, services, top):
    services.put(service(top, namespace="ada"))
    assert zone.owns(f"example.{top}", "ada")
    assert not zone.owns(f"example.{top}", "bob")
    assert not zone.owns(f"example.{top}")


def test_a_change_that_no_record_depends_on_does_not_forget_the_answers(zone, pods):
    item = pod("x", address="10.244.1.2")
    pods.put(item)
    version = zone.version
    pods.put({**item, "status": {**item["status"], "startTime": "2026-01-01T00:00:00Z"}})
    assert zone.version == version


@pytest.mark.parametrize("kind", ["Service", "EndpointSlice"])
def test_of_thousands_of_ports_the_same_are_kept_of_a_service_and_of_its_slices(kind):
    ports = [{"name": f"p{number:04}", "port": number} for number in range(5999, 0, -1)]
    item = {"metadata": {"name": "web"}} | (
        {"spec": {"ports": ports}} if kind == "Service" else {"ports": ports}
    )
    limit_ports(item)
    assert [port["port"] for port in item.get("spec", item)["ports"]] == list(range(1, 257))
