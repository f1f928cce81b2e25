"""Install operators by applying their own manifests with kubectl until their webhooks answer; uninstall them.

Local nodes run a program built from the operator's source, with the same objects. The operators are in
`catalog`, the kit's changes to their manifests in ``manifests/operators``.
"""

import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import yaml

from kitlib import config
from kitlib.clusters import Cluster, connect
from kitlib.config import DEFAULT_CLUSTER
from kitlib.display.progress import progress
from kitlib.display.signatures import checked
from kitlib.display.tables import Table
from kitlib.errors import BadInput, Rejected
from kitlib.k8s import images, manifests, names, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects
from kitlib.operators.catalog import OPERATORS, OperatorPart, fetch, find_local
from kitlib.plugins import require_extra

OPERATOR = "trainyard/operator"
INSTALLED = "trainyard/installed"  # annotation of the workload after a complete installation: the version
PROBE_SECONDS = 0.3
REMOVE_SECONDS = 120
# Operators retry with exponential backoff until kubelets have mounted their certificate, within a minute.
READY_SECONDS = 420.0
PARTS = (
    "validatingwebhookconfigurations,mutatingwebhookconfigurations,apiservices,deployments,daemonsets,services,"
    "networkpolicies,configmaps,secrets,serviceaccounts,rolebindings,roles,clusterrolebindings,clusterroles"
)
Report = Callable[[str], None]


@checked
def install(name: str, *, cluster: Cluster | str = DEFAULT_CLUSTER) -> Table:
    """Install an operator if it is not installed, and wait until it is ready.

    Args:
        name: ``training-operator``, ``trainer``, ``kueue``, ``metrics-server``, ``nvidia-device-plugin`` or
            ``elastic-job``.
        cluster: The cluster, or its name.

    Returns:
        Its parts, with version and namespace.

    Raises:
        BadInput: There is no such operator, or a local one needs an extra that is not installed.
        InstallFailed: Its manifests could not be downloaded or unpacked.
        WaitTimeout: It did not become ready; the message has the reason.

    Example:
        >>> install("training-operator")
    """
    parts = _parts(name)
    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    with progress(f"operator {name}") as line:
        if built_in := cluster.built_in(name):
            line.done(f"nothing to install: {built_in}")
            return _table([])
        for part in parts:
            if part.extra and cluster.provider == "local":  # local pods run in this environment
                require_extra(part.extra, about=f"operator {name}")
            _install(cluster, part, line.update)
        line.done("ready")
    return _table(parts)


@checked
def uninstall(name: str, *, cluster: Cluster | str = DEFAULT_CLUSTER) -> Table:
    """Remove an operator that the kit installed; idempotent.

    Its custom resource definitions are kept while any namespace has objects of them, because deleting a
    definition deletes all its objects.

    Returns:
        The objects that keep definitions: delete them, and call this again.
    """
    parts = _parts(name)
    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    remaining: list[tuple[str, str, str]] = []
    with progress(f"operator {name}") as line:
        for part in reversed(parts):
            line.update(f"removing {part.name}")
            objects = _custom_objects(cluster.kube, part)
            _remove(cluster, part, with_definitions=not objects)
            remaining += objects
        retained = f"; the definitions of {len(remaining)} remaining objects are kept" if remaining else ""
        line.done(f"removed{retained}")
    return Table(("kind", "namespace", "name"), remaining, empty="nothing remains of it")


def list_operators(cluster: Cluster) -> Table:
    """List the known operators, with the installed version, or how the cluster provides it."""
    rows = []
    for name, parts in OPERATORS.items():
        kind, namespace, workload = parts[-1].workload
        controller = cluster.kube.in_namespace(namespace).find(kind, workload)
        annotations = (controller["metadata"].get("annotations") or {}) if controller else {}
        version = annotations.get(INSTALLED, "not the kit's") if controller else ""
        rows.append((name, parts[-1].version, version or cluster.built_in(name)))
    return Table(("operator", "version", "installed"), rows)


def _parts(name: str) -> tuple[OperatorPart, ...]:
    if name not in OPERATORS:
        raise BadInput("unknown operator", about=repr(name), fix=f"one of {', '.join(OPERATORS)}")
    return OPERATORS[name]


def _table(parts: list[OperatorPart] | tuple[OperatorPart, ...]) -> Table:
    rows = [(part.name, part.version, part.workload[1], "/".join(part.workload[::2])) for part in parts]
    return Table(("operator", "version", "namespace", "runs as"), rows, empty="nothing to install")


# Install


def _install(cluster: Cluster, part: OperatorPart, report: Report) -> None:
    kind, namespace, name = part.workload
    controller = cluster.kube.in_namespace(namespace).find(kind, name)
    meta = controller["metadata"] if controller else {}
    is_own = (meta.get("labels") or {}).get(OPERATOR) == part.name
    complete = (meta.get("annotations") or {}).get(INSTALLED) == part.version
    with tempfile.TemporaryDirectory(prefix="trainyard-") as scratch:
        folder = Path(scratch) / part.name
        if controller is None or (is_own and not complete):
            _gather(cluster, part, folder, report)
            report(f"applying the manifests of {part.name} {part.version}")
            _apply(cluster, folder, part)
        _wait(cluster.kube.in_namespace(namespace), part, report, is_own=controller is None or is_own)
        if folder.exists():
            if part.then:
                _apply(cluster, folder / "then", part)
            _mark(cluster.kube, controller or cluster.kube.in_namespace(namespace).get(kind, name), part)


def _gather(cluster: Cluster, part: OperatorPart, folder: Path, report: Report) -> None:
    """Copy the kit's kustomization into a folder, with the operator's manifests as ``upstream``."""
    shutil.copytree(config.manifests("operators", part.name), folder)
    provided = cluster.operator_manifests(part.program) if part.program else None
    if part.url and (local := provided or find_local(part)):
        shutil.copytree(local, folder / "upstream")
    elif part.url:
        fetch(part, folder / "upstream", report=report)
    if part.code:
        shutil.copy(config.DATA / part.code, folder)


def _apply(cluster: Cluster, folder: Path, part: OperatorPart) -> None:
    settings, source = config.read(), f"-k {shlex.quote(str(folder))}"
    if settings.registry or settings.pull_secret or settings.tolerations:
        text = str(cluster.kubectl(source.replace("-k", "kustomize", 1)))
        items = _apply_settings(cluster, part, list(manifests.parse(text, about=part.name)), settings)
        (folder / "objects.yaml").write_text(manifests.write(items), encoding="utf-8")
        source = f"-f {shlex.quote(str(folder / 'objects.yaml'))}"
    # Server-side, because some definitions exceed the size of client-side apply's annotation.
    cluster.kubectl(f"apply --server-side --force-conflicts {source}")


def _apply_settings(
    cluster: Cluster, part: OperatorPart, items: list[Object], settings: config.Settings
) -> list[Object]:
    """Apply the settings for registry, pull Secret and tolerations to pods, also to those in ConfigMaps."""
    namespaces, secrets = set[str](), settings.pull_secrets
    items = [images.pull_from(item, settings.registry, secrets) for item in items]
    for item in items:
        for key, text in (item.get("data") or {}).items() if item["kind"] == "ConfigMap" else ():
            if key.endswith(".yaml"):
                documents = {"documents": list(yaml.safe_load_all(text))}
                changed = images.pull_from(documents, settings.registry, secrets)["documents"]
                item["data"][key] = str(manifests.write(changed))
        if pod := ((item.get("spec") or {}).get("template") or {}).get("spec"):
            pod["tolerations"] = [*(pod.get("tolerations") or ()), *settings.tolerations]
            namespaces.add(item["metadata"].get("namespace", cluster.kube.namespace))
    if secret := settings.pull_secret:
        own = cluster.kube.get("Secret", secret)
        labels = {names.KIT: "true", OPERATOR: part.name}
        for namespace in sorted(namespaces - {cluster.kube.namespace}):  # Secrets are namespaced
            meta = {"name": secret, "namespace": namespace, "labels": labels}
            items.append({**own, "metadata": meta})
    return items


def _mark(kube: Kube, workload: Object, part: OperatorPart) -> None:
    kind, namespace, name = part.workload
    meta = {"name": name, "namespace": namespace, "annotations": {INSTALLED: part.version}}
    kube.apply({"apiVersion": workload.get("apiVersion", "apps/v1"), "kind": kind, "metadata": meta})


def _wait(kube: Kube, part: OperatorPart, report: Report, *, is_own: bool) -> None:
    """Wait until its workloads are available, its kinds are served, and its webhooks answer."""
    kind, namespace, name = part.workload
    about = f'{kind} "{name}" in namespace "{namespace}" of cluster "{kube.cluster}"'
    resume = f'`kit.install("{part.name}")` again; see `cluster.kubectl("describe pods -n {namespace}")`'
    label, field = f"{OPERATOR}={part.name}", f"metadata.name={name},metadata.namespace={namespace}"
    specs = [WatchSpec("Pod", fields=f"metadata.namespace={namespace}")]
    specs += (
        [WatchSpec(kind, labels=label) for kind in IS_READY] if is_own else [WatchSpec(kind, fields=field)]
    )
    wait(
        watch_objects(kube.in_namespace(""), *specs),
        standstill=READY_SECONDS,
        until=lambda snapshot: f"{namespace}/{name}" in snapshot[kind] and not _not_ready(snapshot),
        what=f"all of {part.name}",
        about=about,
        resume=resume,
        describe=lambda snapshot: _describe(snapshot, part),
        report=report,
    )
    probe = config.DATA / "manifests" / "operators" / part.name / "probe.yaml"
    if probe.exists():
        (item,) = manifests.read(probe)
        wait(
            _rejections(kube, item),
            until=lambda message: not message,
            what=f"the webhooks of {part.name}",
            about=about,
            resume=resume,
            describe=lambda message: f"its webhooks do not answer yet: {message}",
            report=report,
        )


def _available(workload: Object) -> bool:
    status = workload.get("status") or {}
    if status.get("observedGeneration") != workload["metadata"].get("generation"):
        return False
    if workload["spec"].get("replicas") is None:  # a DaemonSet
        return status.get("numberReady", 0) >= status.get("desiredNumberScheduled", 0)
    return status.get("availableReplicas", 0) >= workload["spec"]["replicas"]


# The kinds of objects that an operator's jobs need, and when they are ready.
IS_READY: Mapping[str, Callable[[Object], bool]] = {
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet"), _available),
    "CustomResourceDefinition": partial(pods.has_condition, kind="Established"),
    "APIService": partial(pods.has_condition, kind="Available"),
}


def _not_ready(snapshot: Snapshot) -> list[str]:
    return [
        f"{kind} {item['metadata']['name']}"
        for kind, is_ready in IS_READY.items()
        for item in snapshot.get(kind, {}).values()
        if not is_ready(item)
    ]


def _describe(snapshot: Snapshot, part: OperatorPart) -> str:
    prefix = "/".join(part.workload[1:])
    items = [pod for name, pod in snapshot["Pod"].items() if name.startswith(prefix)]
    reasons = sorted({reason for pod in items if (reason := pods.why(pod))})
    return "; ".join(reasons) or f"not ready yet: {', '.join(_not_ready(snapshot)) or part.workload[2]}"


def _rejections(kube: Kube, probe: Object) -> Iterator[str]:
    """Yield the rejection of a dry-run creation, "" without one: webhooks have no status to watch."""
    while True:
        try:
            kube.create(probe, dry_run=True)
            yield ""
        except Rejected as error:
            yield error.what
        time.sleep(PROBE_SECONDS)


# Remove


def _custom_objects(kube: Kube, part: OperatorPart) -> list[tuple[str, str, str]]:
    """List users' objects of the part's custom kinds, in all namespaces: kind, namespace, name."""
    all_namespaces, label = kube.in_namespace(""), f"{OPERATOR}={part.name}"
    objects = []
    for definition in kube.get_all("CustomResourceDefinition", labels=label):
        spec = definition["spec"]
        version = next(version["name"] for version in spec["versions"] if version["storage"])
        kind, api_version = spec["names"]["kind"], f"{spec['group']}/{version}"
        try:
            items = all_namespaces.get_all(kind, labels=f"{OPERATOR}!={part.name}", api_version=api_version)
        except Rejected as error:
            if error.status != 404:
                raise
            continue  # not served yet, so there are none
        metas = (item["metadata"] for item in items)
        objects += [(kind, meta.get("namespace", ""), meta["name"]) for meta in metas]
    return objects


def _remove(cluster: Cluster, part: OperatorPart, *, with_definitions: bool) -> None:
    label = f"{names.KIT}=true,{OPERATOR}={part.name}"

    def delete(kinds: str) -> None:
        cluster.kubectl(f"delete {kinds} -l {label} --ignore-not-found --timeout={REMOVE_SECONDS}s")

    if with_definitions and part.then and cluster.kube.get_all("CustomResourceDefinition", labels=label):
        delete(part.then)  # before the operator, which handles their finalizers
    delete(f"{PARTS} -A")
    if with_definitions:
        delete("customresourcedefinitions,namespaces")
