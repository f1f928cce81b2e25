"""Which permissions the kit's user needs in a project, and which of Google's roles brings each. Pure.

Roles are the predefined ones of https://cloud.google.com/iam/docs/understanding-roles.
"""

# What creating, using and deleting a cluster asks for; the preflight tests it, docs/gke.md lists it.
NEEDED = (
    "artifactregistry.dockerimages.get",
    "artifactregistry.repositories.create",
    "artifactregistry.repositories.delete",
    "artifactregistry.repositories.setIamPolicy",
    "artifactregistry.repositories.uploadArtifacts",
    "artifactregistry.tags.get",
    "cloudbuild.builds.create",
    "cloudbuild.builds.list",
    "cloudbuild.builds.update",
    "cloudscheduler.jobs.create",
    "cloudscheduler.jobs.delete",
    "cloudscheduler.jobs.update",
    "compute.disks.delete",
    "compute.disks.list",
    "compute.firewalls.delete",
    "compute.firewalls.list",
    "compute.networks.create",
    "compute.networks.delete",
    "compute.subnetworks.create",
    "compute.subnetworks.delete",
    "container.clusters.create",
    "container.clusters.delete",
    "container.clusters.get",
    "container.clusters.getCredentials",
    "container.clusters.update",
    "container.operations.list",
    "iam.serviceAccounts.actAs",
    "iam.serviceAccounts.create",
    "iam.serviceAccounts.delete",
    "resourcemanager.projects.getIamPolicy",
    "resourcemanager.projects.setIamPolicy",
    "storage.buckets.create",
    "storage.buckets.delete",
    "storage.buckets.setIamPolicy",
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.get",
)
_ROLES = (  # the longest beginning of a permission counts
    ("artifactregistry.", "roles/artifactregistry.admin"),
    ("cloudbuild.", "roles/cloudbuild.builds.editor"),
    ("cloudscheduler.", "roles/cloudscheduler.admin"),
    ("compute.", "roles/compute.networkAdmin"),
    ("compute.disks.", "roles/compute.storageAdmin"),
    ("compute.firewalls.", "roles/compute.securityAdmin"),
    ("container.", "roles/container.admin"),
    ("file.", "roles/file.editor"),
    ("iam.serviceAccounts.", "roles/iam.serviceAccountAdmin"),
    ("iam.serviceAccounts.actAs", "roles/iam.serviceAccountUser"),
    ("resourcemanager.projects.", "roles/resourcemanager.projectIamAdmin"),
    ("serviceusage.", "roles/serviceusage.serviceUsageAdmin"),
    ("storage.", "roles/storage.admin"),
)


def role_for(permission: str) -> str:
    """Return the predefined role that brings a permission, as narrow as there is one.

    Example:
        >>> role_for("iam.serviceAccounts.actAs")
        'roles/iam.serviceAccountUser'
    """
    fitting = [(len(beginning), role) for beginning, role in _ROLES if permission.startswith(beginning)]
    return max(fitting)[1] if fitting else "roles/editor"


def grant(project: str, permission: str) -> str:
    """Return the command by which somebody who may gives a permission."""
    return f"gcloud projects add-iam-policy-binding {project} --member=user:YOU --role={role_for(permission)}"
