"""Checks of a cluster: what it and a namespace allow, before anything is launched.

`kit.preflight(cluster)` shows them. Rights in one namespace are enough: what this user may not read is asked
of the API server in dry runs, or left open. Nothing is created.
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
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.pod_security import PodSecurity
from kitlib.k8s.quantities import GPU, allocatable, format_bytes
from kitlib.storage import pvc, storage_class
from trainyard_kit.container_images.image_index import compare

OK, WARNING, FAILED = "ok", "warn", "failed"
Row = tuple[str, str, str, str]  # check, result, what was found, how to fix it
# What a launch, its follower and the helper of a volume do, as API group, resource and verbs.
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
WITHOUT = {  # what does not work without these alone
    "pods/exec": "copying files to volumes does not work",
    "pods/portforward": "cluster.port_forward does not work, which notebooks 19 and 21 need",
    "events": "causes of failures are less exact",
}
METRICS = "metrics.k8s.io"  # an aggregated API, of a server of its own
OPERATORS = {
    "kubeflow.org": ("PyTorchJob", "training-operator"),
    "trainer.kubeflow.org": ("TrainJob", "trainer"),
    "elastic.pytorch.org": ("ElasticJob", "elastic-job"),
    METRICS: ("top and usage", "metrics-server"),
}
PACKAGES = ("grpc", "boto3", "etcd", "tensorboard")  # of trainers, which PyTorch's own image lacks
# What each run has: its object, pods, and mostly a Service and a ConfigMap.
OBJECTS = ("pods", "services", "configmaps", "jobs.batch")
ARGUMENTS = {"limits.cpu": "cpu=", "limits.memory": "memory="}  # of jobs
OF = {"Container": "", "Pod": " of a pod", "PersistentVolumeClaim": " of a volume"}  # of LimitRanges
PRESSURE_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


def check_cluster(cluster: Cluster) -> list[Row]:
    """Check what a cluster and its namespace allow; a row for each check, with its result and how to fix it.

    Raises:
        ClusterUnreachable: Its API server does not answer.
    """
    rows: list[Row] = [
        ("API server", OK, f'{cluster.kube.version()}, namespace "{cluster.kube.namespace}"', "")
    ]
    for check in CHECKS:
        rows += _rows(check, cluster)
    return rows


def _rows(check: Callable[[Cluster], Iterator[Row]], cluster: Cluster) -> list[Row]:
    title = (check.__doc__ or "").partition(":")[0]
    try:
        return list(check(cluster))
    except Rejected as error:
        hint = admission_hint(error.what)
        unread = error.status == 403 and not hint
        return [(title, WARNING, "not checked: this user may not read it" if unread else error.what, hint)]


def _rights(cluster: Cluster) -> Iterator[Row]:
    """rights: what this user may do in the namespace."""
    kube, lacking = cluster.kube, []
    for group, resource, verbs in RIGHTS:
        refused = [verb for verb in verbs if not _may(kube, group, resource, verb)]
        if refused and resource in WITHOUT:
            yield f"right: {resource}", WARNING, f"may not {', '.join(refused)}", WITHOUT[resource]
        elif refused:
            lacking.append(f"{', '.join(refused)} {resource}")
    if lacking:
        fix = f"an administrator binds the ClusterRole edit in namespace {kube.namespace}"
        yield "rights", FAILED, f"may not {'; '.join(lacking)}", fix
    else:
        yield "rights", OK, "jobs, pods, volumes and their logs", ""


def _may(kube: Kube, group: str, resource: str, verb: str) -> bool:
    plain, _, part = resource.partition("/")
    attributes = {"namespace": kube.namespace, "group": group, "resource": plain, "verb": verb}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": attributes | ({"subresource": part} if part else {})},
    }
    return bool(kube.create(review).get("status", {}).get("allowed"))


def _security(cluster: Cluster) -> Iterator[Row]:
    """pod security: whether the pods of the kit are admitted, and those of root."""
    security = cluster.pod_security(config.read().run_as_user)
    user = "the namespace's" if security.user is None else str(security.user)
    refusal = _refusal(cluster.kube, security)
    if refusal:
        fix = admission_hint(refusal) or "have the administrator allow what is named; or another namespace"
        yield "pod security", FAILED, f"pods as user {user} are refused: {refusal}", fix
    elif root := _refusal(cluster.kube, PodSecurity.of(0)):
        level = "restricted" if "restricted" in root else "baseline" if "baseline" in root else "strict"
        users = f"{level}: pods run as user {user}, not as root"
        yield "pod security", OK, users, "leave `run_as_user=0` out"
    else:
        yield "pod security", OK, f"pods run as user {user}; root is allowed, too", ""


def _refusal(kube: Kube, security: PodSecurity) -> str:
    """Have the API server check a pod of the kit's helper; empty if it is admitted or quotas refuse it."""
    (pod,) = manifests.read(config.manifests("volume", "helper.yaml"))
    name = names.unique("preflight")
    pod = merge(pod, {"metadata": {"name": name, "labels": names.labels(run=name)}})
    pod = images.pull_from(pod, config.read().registry, None)
    try:
        kube.create(security.apply(pod), dry_run=True)
    except Rejected as error:
        bounded = any(sign in error.what for sign in ("quota", "per Container", "per Pod", "ratio"))
        return "" if bounded or "cannot create resource" in error.what else error.what
    return ""


def _quotas(cluster: Cluster) -> Iterator[Row]:
    """quota: what is free, and which limits it demands."""
    quotas = cluster.kube.get_all("ResourceQuota")
    for quota in quotas:
        room, title = quota_room(quota, []), f"quota {quota['metadata']['name']}"
        hard = quota["spec"]["hard"]
        # What a quota forbids altogether, jobs may do without.
        full = [
            name
            for name, (_, free) in room.items()
            if free <= 0 and (str(hard[name]) != "0" or name.removeprefix("count/") in OBJECTS)
        ]
        demanded = [name for name in ARGUMENTS if name in hard]
        parts = {name: values for name, values in room.items() if not name.startswith("count/")}
        free = ", ".join(
            f"{name} {_shown(name, left)} of {_shown(name, most)}" for name, (most, left) in parts.items()
        )
        if full:
            fix = "ask the administrator for a larger quota"
            if any(str(hard[name]) != "0" for name in full):
                fix = f"delete what has ended: trainyard run list; or {fix}"
            yield title, FAILED, f"no room for {', '.join(full)}", fix
        elif demanded:
            arguments = " and ".join(f"`{ARGUMENTS[name]}`" for name in demanded)
            yield title, OK, f"free: {free}; demands {', '.join(demanded)}", f"give jobs {arguments}"
        else:
            yield title, OK, f"free: {free}", ""
    if not quotas:
        yield "quota", OK, "none", ""


def _shown(resource: str, value: float) -> str:
    return format_bytes(value) if resource.endswith(("memory", "storage")) else f"{value:g}"


def _limits(cluster: Cluster) -> Iterator[Row]:
    """limit range: the least, the most and the defaults of a container."""
    items = [limit for item in cluster.kube.get_all("LimitRange") for limit in item["spec"]["limits"]]
    words = [
        f"{field} {', '.join(f'{name} {value}' for name, value in limit[field].items())}{OF[limit['type']]}"
        for limit in items
        if limit["type"] in OF
        for field in ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio")
        if limit.get(field)
    ]
    fix = "`cpu=` and `memory=` of jobs, `size=` of volumes within that" if words else ""
    yield "limit range", OK, "; ".join(words) or "none", fix


def _storage(cluster: Cluster) -> Iterator[Row]:
    """storage: the class of volumes, and on how many nodes they can be mounted."""
    classes, name = storage_class.read_classes(cluster.kube), config.read().storage_class
    default = storage_class.default_of(classes) if classes is not None else None
    name = name or (default["metadata"]["name"] if default else None)
    name = name or (pvc.default_class(cluster.kube, "preflight") if classes is None else None)
    if name is None:
        fix = "TRAINYARD_STORAGE_CLASS or `storage_class=` names one"
        yield "storage", FAILED if classes is not None else WARNING, "there is no default StorageClass", fix
        return
    if classes is not None and all(item["metadata"]["name"] != name for item in classes):
        known = ", ".join(sorted(item["metadata"]["name"] for item in classes))
        fix = f"TRAINYARD_STORAGE_CLASS, of {known or 'none: install a CSI driver'}"
        yield "storage", FAILED, f"there is no StorageClass {name}", fix
        return
    nodes = storage_class.nodes_of(name, classes)
    item = next((item for item in classes or () if item["metadata"]["name"] == name), {})
    late = item.get("volumeBindingMode") == "WaitForFirstConsumer"
    found = f"class {name}" + (", bound when a pod uses it" if late else "")
    if nodes == "one":
        shared = [
            other["metadata"]["name"]
            for other in classes or ()
            if storage_class.nodes_of(other["metadata"]["name"], classes) == "many"
        ]
        fix = f"`storage_class={shared[0]!r}`" if shared else "install one for NFS, EFS, Filestore or CephFS"
        yield "storage", WARNING, f"{found}: one node at a time", f"for pods on several nodes: {fix}"
    else:
        yield "storage", OK, f"{found}: {'many nodes' if nodes else 'not known for how many nodes'}", ""


def _network(cluster: Cluster) -> Iterator[Row]:
    """network policy: whether the pods of a run reach each other, and DNS."""
    policies = cluster.kube.get_all("NetworkPolicy")
    reasons = blocked_pods(policies)
    if reasons:
        fix = f"kubectl apply -n {cluster.kube.namespace} -f {config.DATA / ALLOWING}"
        yield "network policy", FAILED, f"keeps pods {' and '.join(reasons)}", fix
    else:
        yield "network policy", OK, f"{len(policies)}, which let runs through" if policies else "none", ""


def blocked_pods(policies: Sequence[Object]) -> list[str]:
    """List what policies keep the pods of a run from."""
    pod = {"metadata": {"name": "preflight", "labels": names.labels(run="preflight")}}
    return list(blocked(list(policies), pod))


def _nodes(cluster: Cluster) -> Iterator[Row]:
    """nodes: architectures, GPUs, and taints that keep pods away."""
    nodes = cluster.kube.get_all("Node")
    kinds = sorted({node["status"].get("nodeInfo", {}).get("architecture", "?") for node in nodes})
    gpus = sum(allocatable(node, GPU) for node in nodes)
    yield "nodes", OK, f"{len(nodes)}, {', '.join(kinds)}, {gpus:g} GPUs", ""
    known = {toleration["key"] for toleration in config.read().tolerations} | {GPU}
    tainted = {
        f"{taint['key']}={taint.get('value', '')}:{taint['effect']}".replace("=:", ":")
        for node in nodes
        for taint in node["spec"].get("taints") or []
        if taint["key"] not in known
        and not taint["key"].startswith((*PRESSURE_TAINTS, "node-role.kubernetes.io/"))
    }
    if tainted:
        fix = f"TRAINYARD_TOLERATIONS={','.join(sorted(tainted))} lets pods run there"
        yield "taints", WARNING, ", ".join(sorted(tainted)), fix


def _images(cluster: Cluster) -> Iterator[Row]:
    """images: the trainers' image, and the Secret with which nodes pull it."""
    try:
        image = cluster.trainer_image()
    except KitError as error:
        yield "image", FAILED, error.what, error.fix
        return
    secret = config.read().pull_secret
    if secret and allowed(lambda: cluster.kube.find("Secret", secret) or {}) == {}:
        fix = f"kubectl create secret docker-registry {secret} --docker-server=… --docker-username=…"
        yield "image", FAILED, f'there is no Secret "{secret}" (TRAINYARD_PULL_SECRET)', fix
        return
    foreign = kinds = ""
    if cluster.provider != "local":
        nodes = allowed(lambda: cluster.kube.get_all("Node"))
        published, foreign = compare(cluster.kube, mirrored(image, config.read().registry), nodes or ())
        kinds = f", for {', '.join(sorted(published))}" if published and nodes is None else ""
    if foreign:
        fix = f"job.patch with a nodeSelector on kubernetes.io/arch; or {BUILDER}"
        yield "image", FAILED, f"{image} is not for the nodes' {foreign}", fix
    elif image.endswith(config.DEFAULT_IMAGE) and cluster.provider != "local":
        message = f"{image}, PyTorch's own: the kit's is not published; this one has no {', '.join(PACKAGES)}"
        yield "image", WARNING, message + kinds, BUILDER
    else:
        yield "image", OK, image + kinds + (f", with Secret {secret}" if secret else ""), ""


def _operators(cluster: Cluster) -> Iterator[Row]:
    """operators: which are installed, by the APIs that are served."""
    groups = {group["name"] for group in cluster.kube.raw(group_path()).get("groups") or []}
    for group, (use, operator) in OPERATORS.items():
        if group not in groups:
            fix = f'for {use}: `kit.install("{operator}")`, by an administrator'
            yield operator, WARNING, "not installed", fix
        elif group == METRICS and not _metrics_answer(cluster.kube):
            fix = "for an administrator: kubectl -n kube-system get pods -l k8s-app=metrics-server"
            yield operator, WARNING, f"registered, but does not answer: {use} wait for it", fix
        else:
            yield operator, OK, "served", ""


def _metrics_answer(kube: Kube) -> bool:
    """Whether the server behind an aggregated API answers; the group is listed while it does not."""
    try:
        kube.raw(f"{group_path(METRICS)}/v1beta1")
    except Rejected as error:
        return error.status not in (404, 503)
    return True


CHECKS = (_rights, _security, _quotas, _limits, _storage, _network, _nodes, _images, _operators)
