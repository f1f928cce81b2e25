"""A real registry on this machine, Debian's, with or without a password."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONFIGURATION = """
version: 0.1
log: {level: info, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: %s}}
http: {addr: "127.0.0.1:%d"}
"""
PASSWORD = "123456789012-auth-token"  # what the fake Amazon's ECR gives
HASHED = "$2b$04$joyFUhy5vTqeQICV31CghOdppnBzunUJI74iLqTB.C1eNDpdz6pyK"  # the same, by bcrypt


@contextmanager
def serve_registry(folder: Path, *, password: str = "") -> Iterator[str]:
    """Yield the address of a registry; with a password, that of the users of both clouds."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = CONFIGURATION % (folder / "storage", port)
    if password:
        assert password == PASSWORD
        users = ("AWS", "oauth2accesstoken")  # as ECR and Artifact Registry call everybody
        (folder / "htpasswd").write_text("".join(f"{user}:{HASHED}\n" for user in users))
        text += f"auth: {{htpasswd: {{realm: test, path: {folder / 'htpasswd'}}}}}\n"
    configuration = folder / "registry.yml"
    configuration.write_text(text)
    command = ["docker-registry", "serve", configuration]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "listening on" in line:
                    break
            assert "listening on" in lines[-1], "".join(lines)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
