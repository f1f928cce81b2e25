"""Who may administer a cluster of GKE beside who made it: what they are to Kubernetes, and the role of IAM
with which they reach it.

The role of IAM is a matter of the project, which the kit leaves to whoever looks after it.
"""

import re

from kitlib.errors import BadInput

MEMBERS = {"user": "User", "group": "Group", "serviceAccount": "User"}
ADDRESS = re.compile(r"[^\s@:]+@[^\s@:]+\.[^\s@:]+")
REACHES = "roles/container.clusterViewer"


def subject_of(who: str) -> dict[str, str]:
    """Convert an IAM member to a subject of RBAC.

    Raises:
        BadInput: It is nobody that GKE knows.
    """
    kind, _, address = who.partition(":")
    if kind not in MEMBERS or not ADDRESS.fullmatch(address):
        raise BadInput(
            "this is nobody that GKE knows by an address",
            about=f"admin {who!r}",
            fix='"user:ada@example.org"; also group:… and serviceAccount:…',
        )
    return {"kind": MEMBERS[kind], "name": address}


def grant(project: str, who: str) -> str:
    """Return the command that lets an administrator reach the clusters of a project."""
    return f"gcloud projects add-iam-policy-binding {project} --member={who} --role={REACHES}"
