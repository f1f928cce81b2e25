"""Errors of the API server and of its connection: its message, the manifest's lines, and a fix. Pure."""

import base64
import json
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from kitlib.errors import LaunchRejected, Rejected
from kitlib.k8s.manifests import line_of
from kitlib.k8s.quantities import parse_quantity

_FIELD = re.compile(r"\b(?:spec|metadata|data)(?:\.[\w-]+|\[[^\]]+\])+")
_FIXES = {
    400: "correct what is named, and send it again",
    401: "the credentials are not accepted: `kit.credentials()` says which are used; or get a new kubeconfig",
    403: "ask the cluster's administrator for that permission",
    404: "list what exists, as with: kubectl get all",
    409: "read the object again, and try again",
    422: "correct the field that is named, and send it again",
}
_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" '
    r'in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_BOUND = re.compile(r"(maximum|minimum) (cpu|memory|storage) usage per \w+ is ([\w.]*\w)")
_ARGUMENTS = {"cpu": "cpu", "memory": "memory", "storage": "size"}
_QUOTA = re.compile(
    r"exceeded quota: [^,]{1,253}, requested: (?P<requested>[^:]{1,2000}), "
    r"used: [^:]{1,2000}, limited: (?P<limit>.+)"
)
_RULES = ("ValidatingAdmissionPolicy", "admission webhook")  # of the cluster's administrators
_RESERVED = re.compile(r"reserved envs, invalid envs configured: \[([^\]]{1,200})\]")  # of Kubeflow Trainer
_LONG_VALUE = re.compile(r"(Invalid value: )\[\{[^\n\]]{60,800}\](?=: )")
_UNCHECKED = re.compile(r", <nil>: Invalid value: null: some validation rules were not checked[^\]]{0,200}")
_USERS = re.compile(r"run_?as_?user\b.*?(?:range|between|least|>=).*?\b(\d{4,10})\b", re.I | re.S)
_PROXY = "Unable to connect to proxy"


def rejected(status: int, body: bytes, *, about: str) -> Rejected:
    """Build the error of a response: a Kubernetes ``Status``, or a proxy's text."""
    text = body.decode("utf-8", "replace").strip()
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        answer = None
    answer = answer if isinstance(answer, dict) else {}
    reason = answer.get("reason") or ""
    message = answer.get("message") or text or f"HTTP status {status}"
    fix = _FIXES.get(status, "try again; if it persists, read the logs of the control plane")
    if status == 403 or admission_hint(message):
        fix = rbac_hint(message)
    elif "failed calling webhook" in message:
        fix = (
            "the operator that serves this webhook does not run: kubectl get pods -A; `kit.install(…)` again"
        )
    elif reason == "AlreadyExists":
        fix = "choose another name, or delete the old one first"
    return Rejected(message, about=about, fix=fix, status=status, reason=reason)


def unserved(error: Rejected) -> bool:
    """Check whether a write was refused because its kind is not served: not yet, or no longer.

    Discovery lists a CustomResourceDefinition's kind for a while before and after it is served; and an object
    or a namespace that is missing is another 404, whose Status names it.
    """
    if error.status == 405:
        return "custom resource definition is terminating" in error.what
    return error.status == 404 and (not error.reason or "could not find the requested resource" in error.what)


def rbac_hint(message: str) -> str:
    """Suggest what would allow a forbidden request: a permission, or quota."""
    if hint := admission_hint(message):
        return hint
    if "violates PodSecurity" in message:
        return (
            "set the named fields in the pod's securityContext, and leave out root and the node's files: "
            "this namespace allows no pod that has more rights"
        )
    if 'User "system:anonymous' in message:  # also of a path, such as /version
        return "sign in first: the request had no credentials; `kit.credentials()` lists yours"
    match = _FORBIDDEN.search(message)
    if match is None:
        return _FIXES[403]
    commands = grant(**{key: match[key] for key in ("verb", "resource", "group", "namespace", "user")})
    return f"what you may do: kubectl auth can-i --list; an administrator allows this by\n{commands}"


def admission_hint(message: str) -> str:
    """Name the argument that satisfies a quota, a LimitRange, a range of users or Trainer; else empty."""
    if exceeds_quota(message):
        size = re.search(r"\brequests\.storage=([1-9]\w*)", message.rpartition("limited:")[2])
        less = f'`size="{size[1]}"` is the most' if size else "request less"
        return f"{less}, or ask the administrator for a larger quota: this one never has the room"
    if "exceeded quota" in message:
        return (
            "delete runs and pods that have ended, request less, or ask the administrator for a larger quota"
        )
    if bounds := sorted({_bound_hint(*bound.groups()) for bound in _BOUND.finditer(message)}):
        return f"{', '.join(bounds)} that the namespace's LimitRange allows"
    if user := _USERS.search(message):
        return f"`run_as_user={user[1]}` of a job, or for all pods TRAINYARD_RUN_AS_USER={user[1]}"
    if reserved := _RESERVED.search(message):
        return f"leave out {reserved[1]}: Trainer sets it itself, from `nodes=` and `processes_per_node=`"
    if any(sign in message for sign in _RULES) and "denied" in message:
        return (
            "a rule of this cluster requires it: TRAINYARD_LABELS labels all pods, TRAINYARD_REGISTRY names "
            "their registry; `cpu=` and `memory=` set a job's limits, `image=` its image, "
            "`job.patch(…)` all else"
        )
    return ""


def _bound_hint(side: str, resource: str, value: str) -> str:
    value = f"{parse_quantity(value):g}" if resource == "cpu" else f'"{value}"'
    return f"`{_ARGUMENTS[resource]}={value}` is the {'most' if side == 'maximum' else 'least'}"


def exceeds_quota(message: str) -> bool:
    """Check whether a request exceeds a quota even if nothing else uses it."""
    match = _QUOTA.search(message)
    if match is None:
        return False
    requested, limit = (dict(pair.split("=") for pair in part.split(",")) for part in match.groups())
    return any(parse_quantity(value) > parse_quantity(limit[name]) for name, value in requested.items())


def grant(verb: str, resource: str, *, group: str, namespace: str | None, user: str = "USER") -> str:
    """Write the kubectl commands by which an administrator grants a permission.

    Example:
        >>> print(grant("list", "nodes", group="", namespace=None, user="ada"))
        kubectl create clusterrole list-nodes --verb=list --resource=nodes
        kubectl create clusterrolebinding list-nodes --clusterrole=list-nodes --user=ada
    """
    kind = "role" if namespace else "clusterrole"
    place = f" -n {namespace}" if namespace else ""
    name = f"{verb}-{resource.replace('/', '-')}"
    plain, _, part = resource.partition("/")
    full = plain + (f".{group}" if group else "") + (f"/{part}" if part else "")
    return (
        f"kubectl create {kind} {name}{place} --verb={verb} --resource={full}\n"
        f"kubectl create {kind}binding {name}{place} --{kind}={name} --user={user}"
    )


def expired(authorization: str | None, now: datetime) -> str:
    """Read when a bearer token expired; empty if it has not."""
    try:
        payload = (authorization or "").removeprefix("Bearer ").split(".")[1]
        until = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"]
        ended = datetime.fromtimestamp(until, UTC)
    except (IndexError, ValueError, LookupError, TypeError, OverflowError, OSError):
        return ""
    return ended.isoformat(timespec="minutes") if ended < now else ""


def unreached(message: str) -> tuple[str, str]:
    """Explain a failed connection by its message: what it means, and a fix."""
    with Path(__file__).with_name("connections.toml").open("rb") as file:
        known = tomllib.load(file)["connection"]
    for entry in known:
        if entry["sign"] in message:
            return f"{entry['what']}: {message}", entry["fix"]
    return f"its API server does not answer: {message}", "check that it runs"


def error_message(error: Exception) -> str:
    """Extract a connection error's message, without the objects that took part in it."""
    reason = getattr(error, "reason", None)
    text = str(reason if isinstance(reason, Exception) else error)
    last = text.rsplit(": ", 1)[-1].rstrip("\"')")
    return f"{_PROXY}: {last}" if _PROXY in text else last if "Connection refused" in text else text


def launch_rejected(error: Rejected, text: str, *, document: int, fix: str) -> LaunchRejected:
    """Build the error of a rejected document, with the lines of the manifest that it names.

    Long values that the API server repeats are cut, and so are its remarks on checks that it left out.
    """
    message = _UNCHECKED.sub("", _LONG_VALUE.sub(r"\1…", error.what))
    return LaunchRejected(
        f"the API server rejected the manifest: {message}",
        about=error.about,
        fix=fix,
        detail=locate(error.what, text, document=document),
    )


def locate(reply: str, text: str, *, document: int = 0) -> str:
    """Find the lines of a manifest whose fields are named in the API server's message."""
    positions = {
        line for path in _FIELD.findall(reply) if (line := line_of(text, path, document=document)) is not None
    }
    lines = text.splitlines()
    return "\n".join(f"line {number}: {lines[number - 1].strip()}" for number in sorted(positions))
