"""The credentials that boto3 would use, found in variables and files, and never shown.

AWS is not contacted, so they may have expired. The order is boto3's:
https://docs.aws.amazon.com/boto3/latest/guide/credentials.html.
"""

from collections.abc import Mapping
from pathlib import Path

from trainyard_kit.clouds.cluster_store import read_ini

WHOSE = "aws sts get-caller-identity says whose it is"


def find_credentials(env: Mapping[str, str], home: Path) -> tuple[str, str]:
    """Describe the credentials, and the next step with them."""
    profile = env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or ""
    if env.get("AWS_ACCESS_KEY_ID"):
        if not env.get("AWS_SECRET_ACCESS_KEY"):
            return "AWS_ACCESS_KEY_ID, which is half of a key", "set AWS_SECRET_ACCESS_KEY, or unset both"
        unused = f'; the profile "{profile}" is not asked' if profile else ""
        return f"AWS_ACCESS_KEY_ID from the environment{unused}", WHOSE
    if env.get("AWS_WEB_IDENTITY_TOKEN_FILE") and env.get("AWS_ROLE_ARN"):
        return "the role in AWS_ROLE_ARN, by a token file", WHOSE
    files = (
        Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials"),
        Path(env.get("AWS_CONFIG_FILE") or home / ".aws" / "config"),
    )
    name = profile or "default"
    chosen = "AWS_PROFILE" if profile else "nothing else was chosen"
    for file in files:
        if {name, f"profile {name}"} & set(_sections(file)):
            renew = f"if it has expired: aws sso login --profile {name}"
            return f'profile "{name}" in {file} ({chosen})', renew
    if profile:
        return f'profile "{profile}" (AWS_PROFILE), which no file has', "unset it, or: aws configure sso"
    if env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI") or env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        return "the role of this container", WHOSE
    return "nothing was found; on an EC2 instance, its role", "aws configure sso"


def _sections(file: Path) -> list[str]:
    read = read_ini(file)
    return [*read.sections(), *(["default"] if read.defaults() else [])]
