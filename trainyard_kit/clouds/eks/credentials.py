"""The credentials that boto3 would use, found in variables and files, and never shown.

AWS is not contacted, so they may have expired. The order is boto3's:
https://docs.aws.amazon.com/boto3/latest/guide/credentials.html.
"""

from collections.abc import Mapping
from pathlib import Path

from trainyard_kit.clouds.cluster_store import read_ini

SIGN_IN = "aws login, or aws configure sso"
CONTAINER = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
WHOSE = "aws sts get-caller-identity says whose it is"


def find_renewal(env: Mapping[str, str], home: Path, profile: str | None = None) -> str:
    """Say how the user signs in again, in the way in which they signed in, or by a profile asked for."""
    if not profile and env.get("AWS_ACCESS_KEY_ID"):
        kind = "temporary keys" if env.get("AWS_SESSION_TOKEN") else "keys"
        return f"export new {kind} as AWS_ACCESS_KEY_ID and so on: those of the environment are used"
    profiles = _profiles(env, home)
    name = profile or env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"
    if name == "default" and not profiles.get(name):
        if env.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
            return f"write a new token to {env['AWS_WEB_IDENTITY_TOKEN_FILE']}"
        if any(env.get(variable) for variable in CONTAINER):
            return "restart this container, or check that its role may still be used"
        return SIGN_IN
    return _renewal(profiles, name, set())


def _renewal(profiles: Mapping[str, Mapping[str, str]], name: str, visited: set[str]) -> str:
    profile, option = profiles.get(name, {}), "" if name == "default" else f" --profile {name}"
    source = profile.get("source_profile", "")
    if source and source != name and source not in visited:
        return _renewal(profiles, source, visited | {name})
    ways = (
        ("web_identity_token_file", f"write a new token to {profile.get('web_identity_token_file')}"),
        (
            "credential_source",
            f"check that the machine's role may be used ({profile.get('credential_source')})",
        ),
        ("sso_session", f"aws sso login{option}"),
        ("sso_start_url", f"aws sso login{option}"),
        ("aws_access_key_id", f"aws configure{option}, with new keys"),
        ("login_session", f"aws login{option}"),
        ("credential_process", f"check what its program says: {profile.get('credential_process')}"),
    )
    return next((fix for key, fix in ways if profile.get(key)), SIGN_IN)


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
    name = profile or "default"
    chosen = "AWS_PROFILE" if profile else "nothing else was chosen"
    for file in _files(env, home):
        if {name, f"profile {name}"} & set(_sections(file)):
            return f'profile "{name}" in {file} ({chosen})', f"if it has expired: {find_renewal(env, home)}"
    if profile:
        return f'profile "{profile}" (AWS_PROFILE), which no file has', f"unset it, or: {SIGN_IN}"
    if any(env.get(variable) for variable in CONTAINER):
        return "the role of this container", WHOSE
    return "nothing was found; on an EC2 instance, its role", SIGN_IN


def _files(env: Mapping[str, str], home: Path) -> tuple[Path, Path]:
    return (
        Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials").expanduser(),
        Path(env.get("AWS_CONFIG_FILE") or home / ".aws" / "config").expanduser(),
    )


def _profiles(env: Mapping[str, str], home: Path) -> dict[str, dict[str, str]]:
    """Read the profiles of both files; a section of the configuration has `profile` before its name."""
    by_name: dict[str, dict[str, str]] = {}
    for file in reversed(_files(env, home)):
        read = read_ini(file)
        for section in _sections(file):
            values = read.defaults() if section == read.default_section else read[section]
            by_name.setdefault(section.removeprefix("profile ").strip(), {}).update(values)
    return by_name


def _sections(file: Path) -> list[str]:
    read = read_ini(file)
    return [*read.sections(), *(["default"] if read.defaults() else [])]
