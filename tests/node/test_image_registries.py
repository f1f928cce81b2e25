"""Who is asked for an image, and with which credentials: secrets, helpers, mirrors, registries elsewhere."""

import base64
import json
import os
import shutil
from pathlib import Path

import pytest

from ..programs.container_registry import PASSWORD, serve_registry
from ..unit.image_registry import serve
from ..unit.oci_images import Image, digest, entry, image, images, layer, small

LARGE = os.urandom(1 << 20) * 12
pytestmark = pytest.mark.usefixtures("no_configuration")
needs_registry = pytest.mark.skipif(
    shutil.which("docker-registry") is None, reason="there is no docker-registry (Debian's package)"
)


def secret(registry, user: str, password: str) -> dict:
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"auths": {registry if isinstance(registry, str) else registry.address: {"auth": auth}}}


@pytest.mark.parametrize("tokens", [False, True])
def test_a_private_image_needs_the_secrets_credentials(registry, store, tokens):
    registry.credentials, registry.tokens = "reader:of images", tokens
    reference = registry.add("private/a:1", small())
    done = images(store, "pull", reference)
    assert done.reason == "unauthorized"
    assert "pull access denied, repository does not exist or may require authorization" in done.message
    wrong, right = secret(registry, "reader", "wrong"), secret(registry, "reader", "of images")
    assert images(store, "pull", reference, auths=[wrong]).reason == "unauthorized"
    assert images(store, "pull", reference, auths=[wrong, right]).status == 0


def test_secrets_match_by_path_and_wildcard_as_in_the_kubelet(registry, store):
    registry.credentials = "reader:secret"
    reference = registry.add("private/a:1", small())
    port = registry.address.partition(":")[2]
    other_secret = secret(f"{registry.address}/public", "reader", "secret")
    assert images(store, "pull", reference, auths=[other_secret]).reason == "unauthorized"
    for match in (f"{registry.address}/private", f"https://{registry.address}/v1/", f"127.0.*.1:{port}"):
        done = images(store, "pull", reference, auths=[other_secret, secret(match, "reader", "secret")])
        assert done.status == 0, (match, done)


def test_a_legacy_dockercfg_and_a_broken_secret_are_read_and_passed_over(registry, store):
    registry.credentials = "reader:secret"
    reference = registry.add("a:1", small())
    legacy = {registry.address: {"username": "reader", "password": "secret"}}
    broken = {"auths": {registry.address: {"auth": "no base64!"}}}
    done = images(store, "pull", reference, auths=[broken, legacy])
    assert done.status == 0, done
    assert "no base64" not in done.errors


def test_the_users_own_docker_credentials_are_used(registry, store, tmp_path):
    registry.credentials = "reader:secret"
    reference = registry.add("a:1", small())
    (tmp_path / ".docker").mkdir()
    config = tmp_path / ".docker" / "config.json"
    config.write_text(json.dumps(secret(registry, "reader", "secret")))
    assert images(store, "pull", reference).status == 0


def test_a_credential_helper_is_asked(registry, store, tmp_path):
    registry.credentials = "reader:secret"
    reference = registry.add("a:1", small())
    helper = tmp_path / "bin" / "docker-credential-test"
    helper.parent.mkdir()
    answer = json.dumps({"ServerURL": registry.address, "Username": "reader", "Secret": "secret"})
    helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")
    helper.chmod(0o755)
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text(json.dumps({"credHelpers": {registry.address: "test"}}))
    path = f"{helper.parent}:{os.environ['PATH']}"
    assert images(store, "pull", reference, env={"PATH": path}).status == 0


def test_credentials_are_sent_to_nobody_else(registry, store):
    with serve() as second_registry:
        second_registry.credentials = "x:y"
        second_registry.add("a:1", small())
        images(store, "pull", f"{second_registry.address}/a:1", auths=[secret(registry, "reader", "secret")])
        assert set(second_registry.authorizations) == {""}


def test_credentials_that_nobody_asked_for_stay_at_home(registry, store):
    reference = registry.add("a:1", small())
    assert images(store, "pull", reference, auths=[secret(registry, "reader", "secret")]).status == 0
    assert set(registry.authorizations) == {""}


def test_a_blob_elsewhere_is_fetched_without_the_registrys_credentials(registry, store, tmp_path):
    source = image(layer(entry("large", LARGE)), compress="")
    blob = max(source.blobs, key=lambda digest: len(source.blobs[digest]))
    registry.credentials = "reader:secret"
    reference = registry.add("a:1", source)
    cuts = iter([1 << 20])
    with serve() as elsewhere:
        elsewhere.blobs = dict(source.blobs)
        hosts(
            tmp_path,
            registry.address,
            f'server = "http://{registry.address}"\n'
            f'[host."http://{elsewhere.address}"]\ncapabilities = ["push"]\n',
        )
        place = f"http://{elsewhere.address}/v2/store/blobs/{blob}"

        def cut(request, path):
            request.blob(source.blobs[blob], cut=next(cuts, None))
            return True

        elsewhere.fault = cut
        registry.fault = lambda request, path: (
            path.endswith(blob) and (request.answer(307, b"", Location=place) or True)
        )
        done = images(store, "pull", reference, auths=[secret(registry, "reader", "secret")])
        assert done.status == 0, done
        assert set(elsewhere.authorizations) == {""}
        assert len(elsewhere.ranges) == 2 and elsewhere.ranges[1].startswith("bytes=")


def test_a_token_is_fetched_over_https_where_that_is_not_this_machine(registry, store):
    registry.credentials, registry.tokens = "reader:secret", True
    registry.realm = "http://192.0.2.1/token"
    done = images(
        store, "pull", registry.add("a:1", small()), auths=[secret(registry, "reader", "secret")], seconds=20
    )
    assert done.status == 1
    assert "plain HTTP is for loopback addresses only" in done.message


def hosts(tmp_path: Path, host: str, text: str) -> None:
    place = tmp_path / "config" / "trainyard" / "certs.d" / host
    place.mkdir(parents=True)
    (place / "hosts.toml").write_text(text)


def test_a_mirror_is_asked_first_and_told_whose_image_it_is(registry, store, tmp_path):
    source = small()
    registry.add("team/a:1", source)
    hosts(
        tmp_path,
        "registry.invalid",
        f'server = "https://registry.invalid"\n[host."http://{registry.address}"]\n'
        'capabilities = ["pull", "resolve"]\n',
    )
    record = images(store, "pull", "registry.invalid/team/a:1").image
    assert record["names"] == ["registry.invalid/team/a:1"]
    assert record["digests"] == [f"registry.invalid/team/a@{source.digest}"]
    assert {query for query in registry.queries if query} == {"ns=registry.invalid"}


def test_mirrors_are_asked_in_the_order_of_the_file_and_the_default_last(registry, store, tmp_path):
    registry.add("team/a:1", small())
    with serve() as empty:
        hosts(
            tmp_path,
            "_default",
            f'[host."http://127.0.0.1:1"]\n[host."http://{empty.address}"]\n[host."http://{registry.address}"]\n',
        )
        assert images(store, "pull", "registry.invalid/team/a:1").status == 0
        assert ("HEAD", "/v2/team/a/manifests/1") in empty.requests


def test_a_path_of_the_mirror_comes_before_the_images(registry, store, tmp_path):
    registry.add("cache/team/a:1", small())
    hosts(
        tmp_path, "registry.invalid", f'[host."http://{registry.address}/v2/cache"]\noverride_path = true\n'
    )
    done = images(store, "pull", "registry.invalid/team/a:1")
    assert done.status == 0, (done, registry.requests)


def test_plain_http_is_for_this_machine_alone(store, tmp_path):
    hosts(tmp_path, "registry.invalid", '[host."http://192.0.2.1:5000"]\n')
    done = images(store, "pull", "registry.invalid/team/a:1")
    assert done.reason == "registry"
    assert "plain HTTP is for loopback addresses only" in done.message


# Several processes, and what a killed one leaves.


@needs_registry
def test_debians_registry_with_a_password_is_opened_by_a_secret(store, tmp_path):
    source = small()
    with serve_registry(tmp_path, password=PASSWORD) as address:
        push(address, "team/tool", "1", source, credentials=f"AWS:{PASSWORD}")
        reference = f"{address}/team/tool:1"
        assert images(store, "pull", reference).reason == "unauthorized"
        assert images(store, "pull", reference, auths=[secret(address, "AWS", PASSWORD)]).status == 0


def push(address: str, repository: str, tag: str, source: Image, *, credentials: str = "") -> None:
    import httpx

    auth = tuple(credentials.split(":", 1)) if credentials else None
    with httpx.Client(base_url=f"http://{address}/v2/{repository}", auth=auth) as client:
        for name, content in source.blobs.items():
            place = client.post("/blobs/uploads/").headers["Location"]
            client.put(
                f"{place}{'&' if '?' in place else '?'}digest={name}",
                content=content,
                headers={"Content-Type": "application/octet-stream"},
            ).raise_for_status()
        client.put(
            f"/manifests/{tag}", content=source.manifest, headers={"Content-Type": source.media}
        ).raise_for_status()
        assert digest(source.manifest) == source.digest
