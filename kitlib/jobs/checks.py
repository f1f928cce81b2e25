"""Checks of a job's objects against a cluster, before `launch` deletes or creates any.

The pods' volumes, Secrets and ConfigMaps exist; the API server admits each object and a pod of each template,
in a dry run; the quotas have room. A dry run of a name that exists is complete: the API server answers
"already exists" after validation, webhooks and quotas. It validates a creation, and not a change of the
existing object, whose fields may be immutable.
"""

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from kitlib.causes.rules.network import ALLOWING, blocked
from kitlib.clusters.trainer_image import BUILDER, lacking
from kitlib.config import DATA
from kitlib.errors import BadInput, KitError, LaunchRejected, Rejected, RunExists, plain
from kitlib.jobs.base import Job
from kitlib.jobs.sources import required
from kitlib.k8s import names, pods
from kitlib.k8s.api_errors import admission_hint, exceeds_quota, launch_rejected
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.job_kinds import KINDS
from kitlib.k8s.manifests import Object, merge, title
from kitlib.k8s.quantities import parse_quantity, requested
from kitlib.storage import storage_class

log: logging.Logger = logging.getLogger(__name__)
ALREADY_EXISTS, OVER_QUOTA = "AlreadyExists", "exceeded quota"
# By a field of whatever object: the kind that it refers to, and the key of the name in it.
_REFERENCES = {
    "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
    "secret": ("Secret", "secretName"),
    "configMap": ("ConfigMap", "name"),
    "secretRef": ("Secret", "name"),
    "configMapRef": ("ConfigMap", "name"),
    "secretKeyRef": ("Secret", "name"),
    "configMapKeyRef": ("ConfigMap", "name"),
}
_TEMPLATES = ("ps.json", "worker.json")  # parameter servers: their master creates these pods
# By a part of a refusal: what to change.
_FIXES = {
    "must specify limits.memory": '`memory="2Gi"` is the limit that this namespace\'s quota demands',
    "must specify limits.cpu": "`cpu=1` is the limit that this namespace's quota demands",
    "must specify requests.memory": '`memory="2Gi"` is the request that this namespace\'s quota demands',
    "must specify requests.cpu": "`cpu=1` is the request that this namespace's quota demands",
    "violates PodSecurity": "change the named fields with `job.patch(…)`, or use a namespace that allows it",
    "PriorityClass": "leave `priority=` out, or have the cluster's administrator create the class",
    "runtimeclass": "kubectl get runtimeclass lists the existing ones",
    "serviceaccount": "kubectl get serviceaccounts lists the existing ones",
}


@dataclass(frozen=True)
class PodSample:
    """A pod for a dry run, and how many equal ones the run will have.

    Attributes:
        plain: Whether the kit creates them itself: a controller tries again where a quota has no room.
    """

    pod: Object
    count: int
    plain: bool = False


def check_references(kube: Kube, job: Job, objects: Sequence[Object], *, about: str) -> None:
    """Raise BadInput for a missing volume, Secret or ConfigMap: pods would wait for it forever."""
    created = {(item["kind"], item["metadata"]["name"]) for item in objects}
    claims = {("PersistentVolumeClaim", claim, "") for claim in job.claims}
    secrets = {("Secret", secret, "") for secret in job.secrets}
    for kind, name, key in sorted(claims | secrets | set(references(list(objects)))):
        if (kind, name) in created:
            continue
        item = allowed(lambda kind=kind, name=name: kube.find(kind, name) or {})  # type: ignore[misc]
        if item is None:  # this user may not look, and the pods may
            continue
        if not item:
            word = "volume" if kind == "PersistentVolumeClaim" else kind
            raise BadInput(f'there is no {word} "{name}"', about=about, fix=_creation(kind, name))
        keys = {**(item.get("data") or {}), **(item.get("binaryData") or {})}
        if key and key not in keys:
            fix = f"use one of its keys: {', '.join(sorted(keys))}"
            fix = fix if keys else f"kubectl edit {kind.lower()} {name} adds one"
            raise BadInput(f'the {kind} "{name}" has no key "{key}"', about=about, fix=fix)


def check_access_modes(kube: Kube, job: Job, objects: Sequence[Object], *, about: str) -> None:
    """Raise BadInput for a single-node or single-pod volume that pods on several nodes would mount.

    Pods that are kept together, by a patch, may share one of a node.
    """
    samples = [sample for item in objects for sample in pod_samples(item)]
    samples += [PodSample(item, 1) for item in objects if item["kind"] == "Pod"]
    for claim in sorted(job.claims):
        users = [sample for sample in samples if claim in pods.claims_of(sample.pod)]
        if sum(sample.count for sample in users) < 2:
            continue
        item = allowed(lambda claim=claim: kube.find("PersistentVolumeClaim", claim))  # type: ignore[misc]
        spec: Object = (item or {}).get("spec") or {}
        modes, name = spec.get("accessModes") or [], spec.get("storageClassName")
        classes = storage_class.read_classes(kube)
        if modes == ["ReadWriteOncePod"]:
            place = "one pod"
        elif modes == [storage_class.ONE] and storage_class.nodes_of(name, classes) == "one":
            nodes = allowed(lambda: list(kube.get_all("Node")))
            if all(_kept_together(sample.pod["spec"]) for sample in users) or len(nodes or ()) == 1:
                continue
            place = "pods on one node"
        else:
            continue
        what = f'volume "{claim}" is for {place} at a time: {modes[0]}, of StorageClass "{name}"'
        fix = f"create_volume with {storage_class.shared_class(classes)}; or `nodes=1`"
        raise BadInput(what, about=about, fix=fix)


def _kept_together(spec: Object) -> bool:
    selectors: Object = spec.get("nodeSelector") or {}
    affinity: Object = spec.get("affinity") or {}
    return bool(spec.get("nodeName") or "kubernetes.io/hostname" in selectors or affinity.get("podAffinity"))


def references(part: object) -> Iterator[tuple[str, str, str]]:
    """Find the claims, Secrets and ConfigMaps without which pods of these objects do not start, with keys."""
    if isinstance(part, list):
        for item in part:
            yield from references(item)
    elif isinstance(part, Mapping):
        if part.get("kind") in ("ConfigMap", "Secret"):
            data = part.get("data") or {}
            part = {name: json.loads(data[name]) for name in _TEMPLATES if name in data}
        for field, value in part.items():
            kind, key = _REFERENCES.get(field, ("", ""))
            if field == "imagePullSecrets":
                yield from (("Secret", secret["name"], "") for secret in value or ())
            elif kind and isinstance(value, Mapping) and not value.get("optional"):
                if name := value.get(key) or value.get("name"):
                    yield kind, name, value.get("key", "")
            else:
                yield from references(value)


def check_admission(
    kube: Kube, job: Job, objects: Sequence[Object], *, replaced: Collection[Object], about: str
) -> None:
    """Have the API server check all objects, and a pod of each template, in dry runs.

    Args:
        replaced: Objects that will be deleted first; their share of a quota counts as free.

    Raises:
        LaunchRejected: It rejects one.
        RunExists: Something that is not this run's has the name of one.
        BadInput: A quota has no room for all.
    """
    admitted: list[PodSample] = []
    never: KitError | None = None
    for index, item in enumerate(objects):
        if index and _are_alike(objects[index - 1], item):
            admitted[-1] = PodSample(admitted[-1].pod, admitted[-1].count + 1, admitted[-1].plain)
            continue  # thirty workers are checked by the first
        own_account = (item.get("spec") or {}).get("serviceAccountName") in _accounts(objects)
        if own_account:  # no pod is accepted before its ServiceAccount exists
            item = merge(item, {"spec": {"serviceAccountName": None}})
        try:
            answer = _dry_run(kube, item, job.name, replaced=replaced)
        except Rejected as error:
            raise launch_error(error, job, objects, index, cluster=kube.cluster) from error
        if item["kind"] == "Pod" and not adopts(objects[-1], item):
            admitted.append(PodSample(answer or item, 1, plain=True))
        for sample in pod_samples(item, accounts=_accounts(objects)):
            try:
                answer = _dry_run(kube, sample.pod, job.name, replaced=replaced)
            except Rejected as error:
                if error.status == 403 and "cannot create resource" in error.what:  # and a controller may
                    continue
                if OVER_QUOTA not in error.what:
                    raise launch_error(error, job, objects, index, cluster=kube.cluster) from error
                if exceeds_quota(error.what):
                    never = launch_error(error, job, objects, index, cluster=kube.cluster)
                answer = None
            admitted.append(PodSample(answer or sample.pod, sample.count))
    _check_quotas(kube, admitted, replaced, about=about)
    if never is not None:  # a quota with scopes, or one that this user may not read
        raise never


def warn_of_policies(kube: Kube, job: Job, objects: Sequence[Object], *, about: str) -> None:
    """Log which NetworkPolicies block connections between the run's pods, if the network enforces them."""
    policies = allowed(lambda: kube.get_all("NetworkPolicy")) or []
    labels = objects[-1]["metadata"].get("labels") or {}
    pod = {"metadata": {"name": names.unique("run"), "labels": labels}}
    if reasons := list(blocked(policies, pod, several=getattr(job, "nodes", 1) > 1)):
        title = ", ".join(item["metadata"]["name"] for item in policies)
        fix = f"kubectl apply -n {kube.namespace} -f {DATA / ALLOWING}"
        log.warning("%s: NetworkPolicy %s keeps its pods %s; %s", about, title, " and ".join(reasons), fix)


def warn_of_image(job: Job, *, about: str) -> None:
    """Log which modules the programs import that PyTorch's own image does not have."""
    sources: Mapping[str, str | bytes] = getattr(job, "sources", {})
    own = {PurePosixPath(path).parts[0].removesuffix(".py") for path in sources}
    modules = {module for path, text in sources.items() if path.endswith(".py") for module in required(text)}
    if missing := lacking(job.image, modules - own):
        log.warning("%s: image %s has no %s; %s", about, job.image, ", ".join(missing), plain(BUILDER))


def pod_samples(item: Object, *, accounts: Collection[str] = ()) -> Iterator[PodSample]:
    """Build a pod of each template in an object, as its controller will."""
    counted = list(_templates(item.get("spec") or {}))
    data = (item.get("data") or {}) if item["kind"] == "ConfigMap" else {}
    counted += [(json.loads(data[name]), 1) for name in _TEMPLATES if name in data]
    for template, count in counted:
        meta = {key: value for key, value in (template.get("metadata") or {}).items() if key != "name"}
        own = template["spec"].get("serviceAccountName") in accounts
        pod_spec = merge(template["spec"], {"serviceAccountName": None} if own else {})
        name = names.unique(item["metadata"]["name"])
        yield PodSample(
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta | {"name": name}, "spec": pod_spec}, count
        )


def _templates(part: Object) -> Iterator[tuple[Object, int]]:
    """Find the pod templates in the spec of an object of any kind, each with its number of pods."""
    template = part.get("template")
    if isinstance(template, dict) and "containers" in (template.get("spec") or {}):
        yield template, part.get("parallelism") or part.get("replicas", 1)
        return
    for value in part.values():
        if isinstance(value, dict):
            yield from _templates(value)


def _accounts(objects: Iterable[Object]) -> set[str]:
    return {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"}


def _dry_run(kube: Kube, item: Object, run: str, *, replaced: Collection[Object]) -> Object | None:
    """Create an object in a dry run; return it, or None where this run's own object has its name."""
    try:
        return kube.create(item, dry_run=True)
    except Rejected as error:
        if error.reason == ALREADY_EXISTS:
            check_owner(kube, item, run)
        elif OVER_QUOTA not in error.what or not any(old["kind"] == item["kind"] for old in replaced):
            raise
        return None


def check_owner(kube: Kube, item: Object, run: str) -> Object | None:
    """Find the object that has the name of one of this run's; raise RunExists if it is something else."""
    old = kube.find(item["kind"], item["metadata"]["name"])
    if old is not None and (old["metadata"].get("labels") or {}).get(names.RUN) != run:
        about = f'{title(item)} in cluster "{kube.cluster}"'
        raise RunExists("something else has the name of this run", about=about, fix="give it another `name=`")
    return old


def _are_alike(one: Object, other: Object) -> bool:
    """Check whether two pods differ only in their names."""
    specs = [{**pod["spec"], "hostname": ""} for pod in (one, other) if pod["kind"] == "Pod"]
    return len(specs) == 2 and specs[0] == specs[1]


def adopts(main: Object, item: Object) -> bool:
    """Check whether the main object's controller adopts an object that exists before it."""
    selector: Object = (main.get("spec", {}).get("selector") or {}).get("matchLabels") or {}
    labels: Object = item["metadata"].get("labels") or {}
    return item["kind"] == "Pod" and bool(selector) and selector.items() <= labels.items()


def launch_error(
    error: Rejected, job: Job, objects: Sequence[Object], document: int, *, cluster: str
) -> KitError:
    """Build the error of a refused object: the operator that is missing, or what to change."""
    main = objects[-1]
    operator = KINDS[main["kind"]].operator
    install = f'`kit.install("{operator}", cluster="{cluster}")`'
    if objects[document] is main and error.status == 404 and "has no kind" in error.what:
        what = f"the cluster has no kind {main['kind']} in {main['apiVersion']}"
        return LaunchRejected(what, about=f'{title(main)} in cluster "{cluster}"', fix=f"{install} brings it")
    kind = objects[document]["kind"]
    fix = (
        f'fix what is named, in `job.patch(…)` or in the arguments; `job.manifest("{kind}")` has these lines'
    )
    fix = next((words for sign, words in _FIXES.items() if sign in error.what), fix)
    fix = admission_hint(error.what) or fix
    if "cannot create resource" in error.what:
        fix = error.fix
    if "violates PodSecurity" in error.what and not job.security.restricted:
        fix = (
            f"leave out `run_as_user=0` and TRAINYARD_RUN_AS_USER: this namespace allows no root; if image "
            f"{job.image} needs it, build one that does not, or use another namespace"
        )
    if operator and "failed calling webhook" in error.what:
        fix = f"its operator does not answer: {install} repairs it"
    position = sum(item["kind"] == kind for item in objects[:document])
    return launch_rejected(error, job.manifest(kind), document=position, fix=fix)


def _check_quotas(
    kube: Kube, admitted: Sequence[PodSample], replaced: Collection[Object], *, about: str
) -> None:
    freed = [item for item in replaced if item["kind"] == "Pod" and not pods.finished(item)]
    for quota in allowed(lambda: kube.get_all("ResourceQuota")) or ():
        for resource, (hard, free) in quota_room(quota, freed).items():
            needed = sum(usage(sample.pod, resource) * sample.count for sample in admitted)
            at_once = sum(usage(sample.pod, resource) * sample.count for sample in admitted if sample.plain)
            if needed <= free:
                continue
            name, count = quota["metadata"]["name"], sum(sample.count for sample in admitted)
            what = (
                f'the run\'s {count} pods need {needed:g} of {resource}, and quota "{name}" allows {hard:g}, '
                f"of which {free:g} are free"
            )
            fix = "fewer `nodes=`, or less of it for each; delete runs and pods that are not needed"
            if needed > hard or at_once > free:
                raise BadInput(what, about=about, fix=fix)
            log.warning("%s: %s; its pods wait until there is room. %s", about, what, fix)


def quota_room(quota: Object, freed: Collection[Object]) -> dict[str, tuple[float, float]]:
    """Compute what a quota allows, and what of it is free once some pods are gone, by resource.

    Quotas with scopes are left to the API server.
    """
    if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
        return {}
    hard, used = quota["spec"].get("hard") or {}, (quota.get("status") or {}).get("used") or {}
    room = {}
    for resource, most in hard.items():
        released = sum(usage(pod, resource) for pod in freed)
        room[resource] = (
            parse_quantity(most),
            parse_quantity(most) - parse_quantity(used.get(resource, 0)) + released,
        )
    return room


def usage(pod: Object, resource: str) -> float:
    """Compute what a pod uses of a quota's resource: ``pods``, ``requests.cpu``, ``limits.memory`` …"""
    if resource in ("pods", "count/pods"):
        return 1
    part, _, name = resource.partition(".") if "." in resource else ("requests", "", resource)
    return requested(pod["spec"], name, part) if part in ("requests", "limits") else 0


def _creation(kind: str, name: str) -> str:
    if kind == "PersistentVolumeClaim":
        return f'`cluster.create_volume("{name}")`; `cluster.volumes()` lists the existing ones'
    if kind == "ConfigMap":
        return f"kubectl create configmap {name} --from-literal=KEY=VALUE, or --from-file=PATH"
    return (
        f"kubectl create secret generic {name} --from-literal=AWS_ACCESS_KEY_ID=…\n"
        f"or, for an image: kubectl create secret docker-registry {name} --docker-server=… "
        "--docker-username=… --docker-password=…"
    )
