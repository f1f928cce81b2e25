"""Arguments of training jobs that are checked by themselves: image, volumes, environment."""

import re
from collections.abc import Mapping

from kitlib.errors import BadInput
from kitlib.jobs.sources import escape_dollars
from kitlib.k8s import names
from kitlib.k8s.manifests import Object

RESERVED_PATHS = ("/trainyard", "/workspace", "/dev")
# Set by whatever starts the ranks: other values would break the rendezvous.
OF_RANKS = re.compile(
    r"(LOCAL_|GROUP_|ROLE_|NODE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|RUN_ID|TORCHELASTIC_.*|PET_.*"
)


def check_image(image: str | None) -> str | None:
    """Return the name of an image, checked."""
    if image is not None and (not isinstance(image, str) or len(image.split()) != 1):
        raise BadInput("image is a name", about=f"image={image!r}", fix='`image="registry.example/mine:1"`')
    return image


def check_environment(env: Mapping[str, object]) -> list[Object]:
    """Return environment variables as a container has them.

    Raises:
        BadInput: A name is invalid or reserved for ranks, or a value is neither text nor a number.
    """
    example = '`env={"WANDB_MODE": "offline"}`'
    if not isinstance(env, Mapping):
        raise BadInput("environment variables are a dict: name -> value", about=f"env={env!r}", fix=example)
    for name, value in env.items():
        if not isinstance(name, str) or not re.fullmatch(r"[!-<>-~]+", name):
            raise BadInput(
                "this is not a name of an environment variable", about=f"env={name!r}", fix=example
            )
        if OF_RANKS.fullmatch(name):
            fix = "leave it out; `nodes=` and `processes_per_node=` say how many ranks there are"
            raise BadInput("this variable is set for each rank", about=f"env={name!r}", fix=fix)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
            fix = f'write its text: `env={{{name!r}: "1"}}`'
            raise BadInput("an environment variable is text", about=f"env={{{name!r}: {value!r}}}", fix=fix)
    values = escape_dollars(map(str, env.values()))
    return [{"name": name, "value": value} for name, value in zip(env, values, strict=True)]


def claims_of(volumes: Mapping[str, object]) -> dict[str, str]:
    """Map each mount path to the name of its claim.

    Raises:
        BadInput: A path is relative or reserved, or a name is none of a volume.
    """
    example = '`volumes={"/data": "shared"}`'
    if not isinstance(volumes, Mapping):
        raise BadInput("volumes are a dict: path -> volume", about=f"volumes={volumes!r}", fix=example)
    claims = {}
    for path, volume in volumes.items():
        if not isinstance(path, str) or not path.startswith("/") or path == "/" or ":" in path:
            raise BadInput("a volume is mounted at an absolute path", about=repr(path), fix=example)
        if any(path == own or path.startswith(f"{own}/") for own in RESERVED_PATHS):
            raise BadInput("this path of the pods is reserved", about=repr(path), fix=example)
        name = volume if isinstance(volume, str) else getattr(volume, "name", None)
        claims[path] = names.validate_name(name, kind="volume")
    return claims
