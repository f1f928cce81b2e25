"""Installing and removing operators: their own manifests, applied by kubectl, until their webhooks answer.

Local nodes run a program that was built from the operator's source, with the same objects. The operators are
in `catalog`, what the kit changes in their manifests in ``manifests/operators``.
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
INSTALLED = "trainyard/installed"  # on the workload, once all of it was there: the version
ASK_SECONDS = 0.3
REMOVE_SECONDS = 120
# An operator looks for its certificate after pauses that double, and kubelets write a Secret within a minute.
READY_SECONDS = 420.0
PARTS = (
    "validatingwebhookconfigurations,mutatingwebhookconfigurations,apiservices,deployments,daemonsets,services,"
    "networkpolicies,configmaps,secrets,serviceaccounts,rolebindings,roles,clusterrolebindings,clusterroles"
)
Report = Callable[[str], None]


@checked
def install(name: str, *, cluster: Cluster | str = DEFAULT_CLUSTER) -> Table:
    """Install an operator, or find it installed; wait until it answers.

    Args:
        name: ``training-operator``, ``trainer``, ``kueue``, ``metrics-server``, ``nvidia-device-plugin`` or
            ``elastic-job``.
        cluster: Where, or the name of where.

    Returns:
        Its parts, with version and namespace.

    Raises:
        BadInput: There is no such operator, or a local one needs an extra that is not installed.
        InstallFailed: Its manifests could not be had.
        WaitTimeout: It did not become ready; the error says what holds it up.

    Example:
        >>> install("training-operator")
    """
    parts = _parts(name)
    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    with progress(f"operator {name}") as line:
        if brought := cluster.built_in(name):
            line.done(f"nothing to install: {brought}")
            return _table([])
        for part in parts:
            if part.extra and cluster.provider == "local":  # whose pods run with this environment
                require_extra(part.extra, about=f"operator {name}")
            _install(cluster, part, line.update)
        line.done("it is ready")
    return _table(parts)


@checked
def uninstall(name: str, *, cluster: Cluster | str = DEFAULT_CLUSTER) -> Table:
    """Remove an operator that the kit installed; one that is not there is fine.

    The definitions of its kinds stay while there are objects of them, in whatever namespace: all objects go
    with their definition.

    Returns:
        The objects that keep definitions: delete them, and call this again.
    """
    parts = _parts(name)
    cluster = connect(cluster) if isinstance(cluster, str) else cluster
    remaining: list[tuple[str, str, str]] = []
    with progress(f"operator {name}") as line:
        for part in reversed(parts):
            line.update(f"removing {part.name}")
            left = _left(cluster.kube, part)
            _remove(cluster, part, with_kinds=not left)
            remaining += left
        line.done(
            f"removed, but for the definitions of what {len(remaining)} objects are"
            if remaining
            else "removed"
        )
    return Table(("kind", "namespace", "name"), remaining, empty="nothing is left of it")


def list_operators(cluster: Cluster) -> Table:
    """List the known operators, with the version that a cluster has, or how it has it by itself."""
    rows = []
    for name, parts in OPERATORS.items():
        kind, namespace, workload = parts[-1].workload
        controller = cluster.kube.within(namespace).find(kind, workload)
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


# Installing


def _install(cluster: Cluster, part: OperatorPart, report: Report) -> None:
    kind, namespace, name = part.workload
    controller = cluster.kube.within(namespace).find(kind, name)
    meta = controller["metadata"] if controller else {}
    ours = (meta.get("labels") or {}).get(OPERATOR) == part.name
    complete = (meta.get("annotations") or {}).get(INSTALLED) == part.version
    with tempfile.TemporaryDirectory(prefix="trainyard-") as scratch:
        folder = Path(scratch) / part.name
        if controller is None or (ours and not complete):
            _gather(cluster, part, folder, report)
            report(f"applying the manifests of {part.name} {part.version}")
            _apply(cluster, folder, part)
        _wait(cluster.kube.within(namespace), part, report, ours=controller is None or ours)
        if folder.exists():
            if part.then:
                _apply(cluster, folder / "then", part)
            _mark(cluster.kube, controller or cluster.kube.within(namespace).get(kind, name), part)


def _gather(cluster: Cluster, part: OperatorPart, folder: Path, report: Report) -> None:
    """Copy the kit's kustomization into a folder, and the manifests it changes beside it, as ``upstream``."""
    shutil.copytree(config.manifests("operators", part.name), folder)
    brought = cluster.operator_manifests(part.program) if part.program else None
    if part.url and (local := brought or find_local(part)):
        shutil.copytree(local, folder / "upstream")
    elif part.url:
        fetch(part, folder / "upstream", report=report)
    if part.code:
        shutil.copy(config.DATA / part.code, folder)


def _apply(cluster: Cluster, folder: Path, part: OperatorPart) -> None:
    settings, source = config.read(), f"-k {shlex.quote(str(folder))}"
    if settings.registry or settings.pull_secret or settings.tolerations:
        text = str(cluster.kubectl(source.replace("-k", "kustomize", 1)))
        items = _pulled(cluster, part, list(manifests.parse(text, about=part.name)), settings)
        (folder / "pulled.yaml").write_text(manifests.write(items), encoding="utf-8")
        source = f"-f {shlex.quote(str(folder / 'pulled.yaml'))}"
    # Server-side: some definitions are too long for the annotation of a plain apply.
    cluster.kubectl(f"apply --server-side --force-conflicts {source}")


def _pulled(
    cluster: Cluster, part: OperatorPart, items: list[Object], settings: config.Settings
) -> list[Object]:
    """Let an operator's pods, and those in its ConfigMaps, pull and tolerate as all the kit's pods do."""
    namespaces, secrets = set[str](), settings.pull_secrets
    items = [images.pull_from(item, settings.registry, secrets) for item in items]
    for item in items:
        for key, text in (item.get("data") or {}).items() if item["kind"] == "ConfigMap" else ():
            if key.endswith(".yaml"):
                parts = {"parts": list(yaml.safe_load_all(text))}
                pulled = images.pull_from(parts, settings.registry, secrets)["parts"]
                item["data"][key] = str(manifests.write(pulled))
        if pod := ((item.get("spec") or {}).get("template") or {}).get("spec"):
            pod["tolerations"] = [*(pod.get("tolerations") or ()), *settings.tolerations]
            namespaces.add(item["metadata"].get("namespace", cluster.kube.namespace))
    if secret := settings.pull_secret:
        own = cluster.kube.get("Secret", secret)
        labels = {names.KIT: "true", OPERATOR: part.name}
        for namespace in sorted(namespaces - {cluster.kube.namespace}):  # a pod's Secret is in its namespace
            meta = {"name": secret, "namespace": namespace, "labels": labels}
            items.append({**own, "metadata": meta})
    return items


def _mark(kube: Kube, workload: Object, part: OperatorPart) -> None:
    kind, namespace, name = part.workload
    meta = {"name": name, "namespace": namespace, "annotations": {INSTALLED: part.version}}
    kube.apply({"apiVersion": workload.get("apiVersion", "apps/v1"), "kind": kind, "metadata": meta})


def _wait(kube: Kube, part: OperatorPart, report: Report, *, ours: bool) -> None:
    """Wait until its workloads are available and its kinds served, then until its webhooks answer."""
    kind, namespace, name = part.workload
    about = f'{kind} "{name}" in namespace "{namespace}" of cluster "{kube.cluster}"'
    resume = f'`install("{part.name}")` again; `cluster.kubectl("describe pods -n {namespace}")` tells more'
    label, field = f"{OPERATOR}={part.name}", f"metadata.name={name},metadata.namespace={namespace}"
    watched = (
        [WatchSpec(kind, labels=label) for kind in IS_READY] if ours else [WatchSpec(kind, fields=field)]
    )
    wait(
        watch_objects(kube.within(""), *watched, WatchSpec("Pod", fields=f"metadata.namespace={namespace}")),
        standstill=READY_SECONDS,
        until=lambda snapshot: f"{namespace}/{name}" in snapshot[kind] and not _not_ready(snapshot),
        what=f"all of {part.name}",
        about=about,
        resume=resume,
        describe=lambda snapshot: _holdup(snapshot, part),
        report=report,
    )
    probe = config.DATA / "manifests" / "operators" / part.name / "probe.yaml"
    if probe.exists():
        (item,) = manifests.read(probe)
        wait(
            _answers(kube, item),
            until=lambda words: not words,
            what=f"the webhooks of {part.name}",
            about=about,
            resume=resume,
            describe=lambda words: f"its webhooks do not answer yet: {words}",
            report=report,
        )


def _available(workload: Object) -> bool:
    status = workload.get("status") or {}
    if status.get("observedGeneration") != workload["metadata"].get("generation"):
        return False
    if workload["spec"].get("replicas") is None:  # a DaemonSet wants a pod on each node that fits, if any
        return status.get("numberReady", 0) >= status.get("desiredNumberScheduled", 0)
    return status.get("availableReplicas", 0) >= workload["spec"]["replicas"]


# What an operator's jobs need of it, and when that is there.
IS_READY: Mapping[str, Callable[[Object], bool]] = {
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet"), _available),
    "CustomResourceDefinition": partial(pods.has_condition, kind="Established"),
    "APIService": partial(pods.has_condition, kind="Available"),
}


def _not_ready(snapshot: Snapshot) -> list[str]:
    """Name the objects that are not ready yet."""
    return [
        f"{kind} {item['metadata']['name']}"
        for kind, is_ready in IS_READY.items()
        for item in snapshot.get(kind, {}).values()
        if not is_ready(item)
    ]


def _holdup(snapshot: Snapshot, part: OperatorPart) -> str:
    items = [item for name, item in snapshot["Pod"].items() if name.startswith("/".join(part.workload[1:]))]
    reasons = sorted({words for item in items if (words := pods.why(item))})
    return "; ".join(reasons) or f"not ready yet: {', '.join(_not_ready(snapshot)) or part.workload[2]}"


def _answers(kube: Kube, probe: Object) -> Iterator[str]:
    """Try again and again to create an object, and yield the refusals: there is no event to wait for."""
    while True:
        try:
            kube.create(probe, dry_run=True)
            yield ""
        except Rejected as error:
            yield error.what
        time.sleep(ASK_SECONDS)


# Removing


def _left(kube: Kube, part: OperatorPart) -> list[tuple[str, str, str]]:
    """List the objects that users have created of the part's kinds, in all namespaces."""
    everywhere, label = kube.within(""), f"{OPERATOR}={part.name}"
    remaining = []
    for definition in kube.get_all("CustomResourceDefinition", labels=label):
        spec = definition["spec"]
        version = next(version["name"] for version in spec["versions"] if version["storage"])
        kind, api_version = spec["names"]["kind"], f"{spec['group']}/{version}"
        try:
            items = everywhere.get_all(kind, labels=f"{OPERATOR}!={part.name}", api_version=api_version)
        except Rejected as error:
            if error.status != 404:
                raise
            continue  # so new that it is not served yet: there is none
        remaining += [
            (kind, item["metadata"].get("namespace", ""), item["metadata"]["name"]) for item in items
        ]
    return remaining


def _remove(cluster: Cluster, part: OperatorPart, *, with_kinds: bool) -> None:
    label = f"{names.KIT}=true,{OPERATOR}={part.name}"

    def delete(kinds: str, *, everywhere: str = "") -> None:
        cluster.kubectl(
            f"delete {kinds} {everywhere} -l {label} --ignore-not-found --timeout={REMOVE_SECONDS}s"
        )

    if with_kinds and part.then and cluster.kube.get_all("CustomResourceDefinition", labels=label):
        delete(part.then)  # while their operator is there to let them go
    delete(PARTS, everywhere="-A")
    if with_kinds:
        delete("customresourcedefinitions,namespaces")
