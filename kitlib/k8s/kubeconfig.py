"""Kubeconfigs: several files merged as kubectl does, one connection taken out of them, a client made of one.

A connection has a file of its own, with one server, user, context and namespace. Its name is a digest of its
content, so that two connections share a file only if they are the same. The Kubernetes client's own merger
lets the last current context win, where kubectl takes the first, and refuses an empty file.
https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/#merging-kubeconfig-files
"""

import base64
import copy
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3
import yaml

from kitlib import config
from kitlib.errors import BadInput
from kitlib.k8s import manifests
from kitlib.k8s.api_errors import error_message
from kitlib.k8s.credential_plugin import CredentialPlugin
from kitlib.k8s.manifests import Object

PARTS = {"clusters": "cluster", "users": "user", "contexts": "context"}
# Fields that hold paths, which are relative to the file that has them; the data of the same name wins.
_PATHS = {"cluster": ("certificate-authority",), "user": ("client-certificate", "client-key", "tokenFile")}
_KEPT_DAYS = 30
_LOOPBACK = "localhost,127.0.0.0/8,::1"  # which no proxy reaches: as kubectl has it


def search_path(environment: Mapping[str, str] = os.environ, home: Path | None = None) -> str:
    """Read KUBECONFIG, or name ``~/.kube/config``."""
    return environment.get("KUBECONFIG", "") or str((home or config.home_directory()) / ".kube" / "config")


def files(paths: str | Path) -> list[Path]:
    """Split a value of KUBECONFIG into the files that exist; kubectl passes over the others as well."""
    named = (Path(path).expanduser().absolute() for path in str(paths).split(os.pathsep) if path)
    return [path for path in named if path.is_file()]


def choose(
    paths: str | Path, *, cluster: str, context: str | None = None, namespace: str | None = None
) -> Object:
    """Extract one context from kubeconfigs, with its server and user.

    Args:
        paths: A file, or several as in KUBECONFIG: the first that has an entry, or a current context, wins.
        cluster: Its name, for errors.
        context: By default the current one.
        namespace: By default the context's.

    Raises:
        BadInput: A file cannot be read, or has no such context.
    """
    about = f'{paths}, for cluster "{cluster}"'
    entries: dict[str, dict[str, Object]] = {part: {} for part in PARTS}
    current = context
    try:
        for path in files(paths):
            content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            current = current or content.get("current-context")
            for part, kind in PARTS.items():
                all_names = [entry["name"] for entry in content.get(part) or []]
                if duplicates := {name for name in all_names if all_names.count(name) > 1}:
                    raise ValueError(f"{path} has {', '.join(sorted(duplicates))} twice in {part}")
                for entry in content.get(part) or []:
                    value = _absolute(entry.get(kind) or {}, kind, path.parent)
                    entries[part].setdefault(entry["name"], {"name": entry["name"], kind: value})
        if current and current not in entries["contexts"]:
            known = ", ".join(sorted(entries["contexts"])) or "none"
            fix = f"set `context=` to one of: {known}"
            raise BadInput(f'the kubeconfig has no context "{current}"', about=about, fix=fix)
        if not current:
            raise KeyError("current-context")
        chosen = entries["contexts"][current]["context"]
        server, user = entries["clusters"][chosen["cluster"]], entries["users"].get(chosen.get("user", ""))
    except BadInput:
        raise
    except (OSError, TypeError, AttributeError, LookupError, ValueError, yaml.YAMLError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        what = f"the kubeconfig cannot be used: {reason}"
        raise BadInput(what, about=about, fix="give another `kubeconfig=`, or another `context=`") from error
    if user and user["user"].get("as"):  # else the kit would do as this user what another may not
        what = f"the kit does not support impersonation: {user['user']['as']}"
        raise BadInput(what, about=about, fix="a user of its own, in place of as: and as-groups:")
    named = chosen | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [server],
        "users": [user] if user else [],
        "contexts": [{"name": current, "context": named}],
        "current-context": current,
    }


def _absolute(entry: Object, kind: str, folder: Path) -> Object:
    """Copy an entry with its paths made absolute: they are relative to its own file."""
    entry = copy.deepcopy(entry)
    for field in _PATHS.get(kind, ()):
        if entry.get(field):
            entry[field] = str(folder / entry[field])
    program = entry.get("exec") or {}
    if os.sep in program.get("command", ""):  # as client-go has it; others are looked for in PATH
        program["command"] = str(folder / program["command"])
    return entry


def keep(content: Object) -> Path:
    """Write a kubeconfig into a file of its own, whose name is a digest of it, and return the path."""
    text = manifests.write([content])
    folder = config.state_folder() / "connections"
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.kubeconfig"
    if path.exists():
        os.utime(path)
        return path
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in _unused(folder):
        old.unlink(missing_ok=True)
    write_whole(path, text)
    return path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that others may read at the same moment: they see the old or the new one, mode 0600."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink()
        raise


def _unused(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        try:
            if time.time() - path.stat().st_mtime > _KEPT_DAYS * 86400:
                yield path
        except FileNotFoundError:  # another process was faster
            continue


def load(kubeconfig: Path, cluster: str) -> tuple[Any, str | None, CredentialPlugin | None]:
    """Make a client of a kubeconfig; return it with the namespace and the credential plugin."""
    from kubernetes import client as api  # half a second, and not needed for `trainyard --help`
    from kubernetes.config import kube_config

    chosen = choose(kubeconfig, cluster=cluster)
    settings: Any = type.__call__(api.Configuration)
    refused = kube_config.oauthlib.oauth2.OAuth2Error  # by OIDC's provider, which renews tokens
    renewal = (kube_config.ConfigException, urllib3.exceptions.HTTPError, api.ApiException, refused)
    try:
        plugin = _signed_in(chosen)
        kube_config.load_kube_config_from_dict(chosen, None, settings, persist_config=False)
        if plugin and plugin.status.get("token"):
            settings.refresh_api_key_hook = lambda now: now.api_key.update(
                BearerToken=f"Bearer {plugin.renew()}"
            )
        settings.no_proxy = ",".join(filter(None, (settings.no_proxy, _LOOPBACK)))
        if proxy := chosen["clusters"][0]["cluster"].get("proxy-url"):
            settings.proxy, settings.no_proxy = proxy, None
        if not settings.verify_ssl:  # as the user chose: kubectl does not speak of it at each request
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        client = api.ApiClient(settings)
    except (*renewal, OSError, TypeError, AttributeError, LookupError, ValueError) as error:
        fix = "give another `kubeconfig=`, or another `context=`; or sign in again"
        what = f"the kubeconfig cannot be used: {error_message(error)}"
        raise BadInput(what, about=f'{kubeconfig}, for cluster "{cluster}"', fix=fix) from error
    return client, chosen["contexts"][0]["context"].get("namespace"), plugin


def _signed_in(chosen: Object) -> CredentialPlugin | None:
    """Replace a credential plugin by its credential: the client would wait for it without a timeout."""
    user = chosen["users"][0]["user"] if chosen["users"] else {}
    if not (entry := user.pop("exec", None)):
        return None
    plugin = CredentialPlugin(entry, chosen["clusters"][0]["cluster"])
    if token := plugin.status.get("token"):
        user["token"] = token
    for field, key in (("client-certificate", "clientCertificateData"), ("client-key", "clientKeyData")):
        if pem := plugin.status.get(key):
            user[f"{field}-data"] = base64.b64encode(pem.encode()).decode()
    return plugin


def make_kubeconfig(
    cluster: str, server: Object, user: str, credentials: Object, *, namespace: str | None = None
) -> Object:
    """Make a kubeconfig with one context, which has the name of its user."""
    context = {"cluster": cluster, "user": user} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": server}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": user, "context": context}],
        "current-context": user,
    }
