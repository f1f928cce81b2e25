"""Check what a cluster and a namespace allow before anything is launched; see `kit.preflight(cluster)`.

Permissions in one namespace are enough: what this user may not read is tested by dry runs at the API server,
or reported as not checked. Nothing is created.
"""

from collections.abc import Callable, Iterator, Sequence

from kitlib import config
from kitlib.causes.rules.network import ALLOWING, blocked
from kitlib.clusters import Cluster
from kitlib.clusters.trainer_image import BUILDER
from kitlib.errors import KitError, Rejected
from kitlib.jobs.checks import quota_room
from kitlib.k8s import images, manifests, names
from kitlib.k8s.api_errors import admission_hint
from kitlib.k8s.api_path import group_path
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.images import mirrored
from kitlib.k8s.job_kinds import JOBS
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.pod_security import PodSecurity
from kitlib.k8s.quantities import GPU, allocatable, format_bytes
from kitlib.storage import pvc, storage_class
from trainyard_kit.checks import Check, Report, failed, ok, warn
from trainyard_kit.container_images.image_index import compare

# Permissions for launching and following runs and for volumes: API group, resource and verbs.
RIGHTS = (
    ("batch", "jobs", ("create", "get", "list", "watch", "delete")),
    ("", "pods", ("create", "get", "list", "watch", "delete")),
    ("", "pods/log", ("get",)),
    ("", "pods/exec", ("create",)),
    ("", "pods/portforward", ("create",)),
    ("", "configmaps", ("create", "get", "delete")),
    ("", "services", ("create", "get", "delete")),
    ("", "persistentvolumeclaims", ("create", "get", "list", "watch", "delete")),
    ("", "events", ("list", "watch")),
)
OPTIONAL_RIGHTS = {  # consequences of permissions without which runs still work
    "pods/exec": "copying files to volumes does not work",
    "pods/portforward": "cluster.port_forward does not work, which notebooks 19 and 21 need",
    "events": "causes of failures are less exact",
}
METRICS = "metrics.k8s.io"  # an aggregated API with its own server
OPERATORS = {  # what each is for, by its API group
    **{kind.api_version.partition("/")[0]: (kind.name, kind.operator) for kind in JOBS if kind.operator},
    METRICS: ("top and usage", "metrics-server"),
}
PACKAGES = ("grpc", "boto3", "etcd", "tensorboard")  # used by trainers, not in PyTorch's own image
# The objects of a run.
OBJECTS = ("pods", "services", "configmaps", "jobs.batch")
ARGUMENTS = {"limits.cpu": "cpu=", "limits.memory": "memory="}  # arguments of jobs
SUFFIXES = {"Container": "", "Pod": " of a pod", "PersistentVolumeClaim": " of a volume"}  # of LimitRanges
PRESSURE_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


def check_cluster(cluster: Cluster) -> Report:
    """Check what a cluster and its namespace allow.

    Raises:
        ClusterUnreachable: The API server does not answer.
    """
    server = ok("API server", f'{cluster.kube.version()}, namespace "{cluster.kube.namespace}"')
    results = (result for check in CHECKS for result in _run(check, cluster))
    return Report(f'cluster "{cluster.name}"', (server, *results))


def _run(check: Callable[[Cluster], Iterator[Check]], cluster: Cluster) -> list[Check]:
    title = (check.__doc__ or "").partition(":")[0]
    try:
        return list(check(cluster))
    except Rejected as error:
        hint = admission_hint(error.what)
        is_forbidden = error.status == 403 and not hint
        finding = "not checked: this user may not read it" if is_forbidden else error.what
        return [warn(title, finding, hint)]


def _rights(cluster: Cluster) -> Iterator[Check]:
    """permissions: what this user may do in the namespace."""
    kube, missing = cluster.kube, []
    for group, resource, verbs in RIGHTS:
        denied = [verb for verb in verbs if not _may(kube, group, resource, verb)]
        if denied and resource in OPTIONAL_RIGHTS:
            yield warn(f"permission: {resource}", f"may not {', '.join(denied)}", OPTIONAL_RIGHTS[resource])
        elif denied:
            missing.append(f"{', '.join(denied)} {resource}")
    if missing:
        fix = f"have an administrator bind the ClusterRole edit in namespace {kube.namespace}"
        yield failed("permissions", f"may not {'; '.join(missing)}", fix)
    else:
        yield ok("permissions", "jobs, pods, volumes and their logs")


def _may(kube: Kube, group: str, resource: str, verb: str) -> bool:
    resource, _, subresource = resource.partition("/")
    attributes = {"namespace": kube.namespace, "group": group, "resource": resource, "verb": verb}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": attributes | ({"subresource": subresource} if subresource else {})},
    }
    return bool(kube.create(review).get("status", {}).get("allowed"))


def _security(cluster: Cluster) -> Iterator[Check]:
    """pod security: whether pods of the kit, and pods that run as root, are admitted."""
    security = cluster.pod_security(config.read().run_as_user)
    user = "the namespace's" if security.user is None else str(security.user)
    refusal = _refusal(cluster.kube, security)
    if refusal:
        fix = admission_hint(refusal) or "have the administrator allow it, or use another namespace"
        yield failed("pod security", f"pods with user {user} are rejected: {refusal}", fix)
    elif root := _refusal(cluster.kube, PodSecurity.of(0)):
        level = "restricted" if "restricted" in root else "baseline" if "baseline" in root else "strict"
        users = f"{level}: pods run as user {user}, not as root"
        yield ok("pod security", users, "leave out `run_as_user=0`")
    else:
        yield ok("pod security", f"pods run as user {user}; root is allowed as well")


def _refusal(kube: Kube, security: PodSecurity) -> str:
    """Submit a helper pod as a dry run; return why it is rejected, ignoring quotas and limits."""
    (pod,) = manifests.read(config.manifests("volume", "helper.yaml"))
    name = names.unique("preflight")
    pod = merge(pod, {"metadata": {"name": name, "labels": names.labels(run=name)}})
    pod = images.pull_from(pod, config.read().registry, None)
    try:
        kube.create(security.apply(pod), dry_run=True)
    except Rejected as error:
        is_limited = any(sign in error.what for sign in ("quota", "per Container", "per Pod", "ratio"))
        return "" if is_limited or "cannot create resource" in error.what else error.what
    return ""


def _quotas(cluster: Cluster) -> Iterator[Check]:
    """quota: free resources, and the limits that it requires."""
    quotas = cluster.kube.get_all("ResourceQuota")
    for quota in quotas:
        room, title = quota_room(quota, []), f"quota {quota['metadata']['name']}"
        hard = quota["spec"]["hard"]
        # Jobs may not need resources that a quota sets to 0.
        full = [
            name
            for name, (_, free) in room.items()
            if free <= 0 and (str(hard[name]) != "0" or name.removeprefix("count/") in OBJECTS)
        ]
        required = [name for name in ARGUMENTS if name in hard]
        parts = {name: values for name, values in room.items() if not name.startswith("count/")}
        free = ", ".join(
            f"{name} {_shown(name, left)} of {_shown(name, most)}" for name, (most, left) in parts.items()
        )
        if full:
            fix = "ask the administrator for a larger quota"
            if any(str(hard[name]) != "0" for name in full):
                fix = f"delete finished runs (trainyard run list), or {fix}"
            yield failed(title, f"exhausted: {', '.join(full)}", fix)
        elif required:
            arguments = " and ".join(f"`{ARGUMENTS[name]}`" for name in required)
            yield ok(title, f"free: {free}; requires {', '.join(required)}", f"pass {arguments} to jobs")
        else:
            yield ok(title, f"free: {free}")
    if not quotas:
        yield ok("quota", "none")


def _shown(resource: str, value: float) -> str:
    return format_bytes(value) if resource.endswith(("memory", "storage")) else f"{value:g}"


def _limits(cluster: Cluster) -> Iterator[Check]:
    """limit range: minimum, maximum and defaults of a container."""
    items = [limit for item in cluster.kube.get_all("LimitRange") for limit in item["spec"]["limits"]]
    ranges = [
        f"{field} {', '.join(f'{name} {value}' for name, value in limit[field].items())}{suffix}"
        for limit in items
        if (suffix := SUFFIXES.get(limit["type"])) is not None
        for field in ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio")
        if limit.get(field)
    ]
    fix = "keep `cpu=` and `memory=` of jobs and `size=` of volumes within it" if ranges else ""
    yield ok("limit range", "; ".join(ranges) or "none", fix)


def _storage(cluster: Cluster) -> Iterator[Check]:
    """storage: the StorageClass of volumes, and on how many nodes they can be mounted."""
    classes, name = storage_class.read_classes(cluster.kube), config.read().storage_class
    default = storage_class.default_of(classes) if classes is not None else None
    name = name or (default["metadata"]["name"] if default else None)
    name = name or (pvc.default_class(cluster.kube, "preflight") if classes is None else None)
    if name is None:
        fix = "set TRAINYARD_STORAGE_CLASS, or pass `storage_class=`"
        yield (failed if classes is not None else warn)("storage", "there is no default StorageClass", fix)
        return
    if classes is not None and all(item["metadata"]["name"] != name for item in classes):
        known = ", ".join(sorted(item["metadata"]["name"] for item in classes))
        fix = f"set TRAINYARD_STORAGE_CLASS to one of {known}" if known else "install a CSI driver"
        yield failed("storage", f"there is no StorageClass {name}", fix)
        return
    nodes = storage_class.nodes_of(name, classes)
    item = next((item for item in classes or () if item["metadata"]["name"] == name), {})
    late = item.get("volumeBindingMode") == "WaitForFirstConsumer"
    volume = f"class {name}" + (", bound when a pod uses it" if late else "")
    if nodes == "one":
        shared = [
            other["metadata"]["name"]
            for other in classes or ()
            if storage_class.nodes_of(other["metadata"]["name"], classes) == "many"
        ]
        fix = (
            f"`storage_class={shared[0]!r}`"
            if shared
            else "install a StorageClass for NFS, EFS, Filestore or CephFS"
        )
        yield warn("storage", f"{volume}: one node at a time", f"for pods on several nodes: {fix}")
    else:
        yield ok("storage", f"{volume}: {'many nodes' if nodes else 'number of nodes unknown'}")


def _network(cluster: Cluster) -> Iterator[Check]:
    """network policy: whether the pods of a run can reach each other and DNS."""
    policies = cluster.kube.get_all("NetworkPolicy")
    reasons = blocked_pods(policies)
    if reasons:
        fix = f"kubectl apply -n {cluster.kube.namespace} -f {config.DATA / ALLOWING}"
        yield failed("network policy", f"keeps pods {' and '.join(reasons)}", fix)
    else:
        yield ok("network policy", f"{len(policies)}, which allow runs" if policies else "none")


def blocked_pods(policies: Sequence[Object]) -> list[str]:
    """List the connections of a run's pods that policies block."""
    pod = {"metadata": {"name": "preflight", "labels": names.labels(run="preflight")}}
    return list(blocked(list(policies), pod))


def _nodes(cluster: Cluster) -> Iterator[Check]:
    """nodes: architectures, GPUs, and taints that repel pods."""
    nodes = cluster.kube.get_all("Node")
    kinds = sorted({node["status"].get("nodeInfo", {}).get("architecture", "?") for node in nodes})
    gpus = sum(allocatable(node, GPU) for node in nodes)
    yield ok("nodes", f"{len(nodes)}, {', '.join(kinds)}, {gpus:g} GPUs")
    known = {toleration["key"] for toleration in config.read().tolerations} | {GPU}
    tainted = {
        f"{taint['key']}={taint.get('value', '')}:{taint['effect']}".replace("=:", ":")
        for node in nodes
        for taint in node["spec"].get("taints") or []
        if taint["key"] not in known
        and not taint["key"].startswith((*PRESSURE_TAINTS, "node-role.kubernetes.io/"))
    }
    if tainted:
        fix = f"TRAINYARD_TOLERATIONS={','.join(sorted(tainted))} tolerates them"
        yield warn("taints", ", ".join(sorted(tainted)), fix)


def _images(cluster: Cluster) -> Iterator[Check]:
    """images: the trainers' image and its pull Secret."""
    try:
        image = cluster.trainer_image()
    except KitError as error:
        yield failed("image", error.what, error.fix)
        return
    secret = config.read().pull_secret
    if secret and allowed(lambda: cluster.kube.find("Secret", secret) or {}) == {}:
        fix = f"kubectl create secret docker-registry {secret} --docker-server=… --docker-username=…"
        yield failed("image", f'there is no Secret "{secret}" (TRAINYARD_PULL_SECRET)', fix)
        return
    foreign = kinds = ""
    if cluster.provider != "local":
        nodes = allowed(lambda: cluster.kube.get_all("Node"))
        published, foreign = compare(cluster.kube, mirrored(image, config.read().registry), nodes or ())
        kinds = f", for {', '.join(sorted(published))}" if published and nodes is None else ""
    if foreign:
        fix = f"job.patch with a nodeSelector for kubernetes.io/arch, or {BUILDER}"
        yield failed("image", f"{image} does not support the nodes' {foreign}", fix)
    elif image.endswith(config.DEFAULT_IMAGE) and cluster.provider != "local":
        message = f"{image}, PyTorch's own, as the kit's is not published; it lacks {', '.join(PACKAGES)}"
        yield warn("image", message + kinds, BUILDER)
    else:
        yield ok("image", image + kinds + (f", with Secret {secret}" if secret else ""))


def _operators(cluster: Cluster) -> Iterator[Check]:
    """operators: which are installed, according to the API groups."""
    groups = {group["name"] for group in cluster.kube.raw(group_path()).get("groups") or []}
    for group, (use, operator) in OPERATORS.items():
        if group not in groups:
            fix = f'for {use}, have an administrator run `kit.install("{operator}")`'
            yield warn(operator, "not installed", fix)
        elif group == METRICS and not _metrics_answer(cluster.kube):
            fix = "have an administrator check kubectl -n kube-system get pods -l k8s-app=metrics-server"
            yield warn(operator, f"registered, but does not answer: {use} are unavailable", fix)
        else:
            yield ok(operator, "served")


def _metrics_answer(kube: Kube) -> bool:
    """Check whether the server of the metrics API answers; the group is listed even if it does not."""
    try:
        kube.raw(f"{group_path(METRICS)}/v1beta1")
    except Rejected as error:
        return error.status not in (404, 503)
    return True


CHECKS = (_rights, _security, _quotas, _limits, _storage, _network, _nodes, _images, _operators)
