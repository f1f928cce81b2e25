"""What the API server's refusals mean: its words, the manifest's lines, what to try next. Pure."""

import json
import re

from kitlib.errors import LaunchRejected, Rejected
from kitlib.manifests import line_of

_FIELD = re.compile(r"\b(?:spec|metadata|data)(?:\.[\w-]+|\[[^\]]+\])+")
_FIXES = {
    400: "mend what is named, and send it again",
    401: "the credentials are not accepted: get a new kubeconfig",
    403: "ask the cluster's administrator for that right",
    404: "see what there is, as with: kubectl get all",
    409: "read the object again, and try again",
    422: "mend the field that is named, and send it again",
}
_TAKEN = "choose another name, or delete the old one first"
_ELSE = "try again; if it stays, look at the logs of the control plane"


def rejected(status: int, body: bytes, *, about: str) -> Rejected:
    """Return the error for an HTTP answer that is one.

    Args:
        status: 400 or above.
        body: A Kubernetes ``Status``, or whatever a proxy on the way has put in its place.
        about: The object, and the cluster.
    """
    text = body.decode("utf-8", "replace").strip()
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        answer = None
    answer = answer if isinstance(answer, dict) else {}
    reason = answer.get("reason") or ""
    fix = _TAKEN if reason == "AlreadyExists" else _FIXES.get(status, _ELSE)
    words = answer.get("message") or text or f"HTTP status {status}"
    return Rejected(words, about=about, fix=fix, status=status, reason=reason)


def words_of(error: Exception) -> str:
    """Return what a connection's error says, without the objects that took part in it."""
    reason = getattr(error, "reason", None)
    text = str(reason if isinstance(reason, Exception) else error)
    return text.rsplit(": ", 1)[-1] if "Connection refused" in text else text


def refusal(error: Rejected, text: str, *, document: int, fix: str) -> LaunchRejected:
    """Return the API server's refusal of one document, with the lines that it speaks of."""
    return LaunchRejected(
        f"the API server refused the manifest: {error.what}",
        about=error.about,
        fix=fix,
        detail=locate(error.what, text, document=document),
    )


def locate(words: str, text: str, *, document: int = 0) -> str:
    """Return the lines of a manifest whose fields are named in the API server's words."""
    found = {
        line for path in _FIELD.findall(words) if (line := line_of(text, path, document=document)) is not None
    }
    lines = text.splitlines()
    return "\n".join(f"line {number}: {lines[number - 1].strip()}" for number in sorted(found))
