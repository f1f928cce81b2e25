"""Put the manifests, the programs that run in pods, and the course into the wheel: as ``kitlib/data``.

A checkout has them beside the packages; `kitlib.config.DATA` finds either. With ``TRAINYARD_RELEASE=1`` the
extra ``local`` has the packages of Kubernetes and of the operators, which a checkout builds or finds itself.
All else is in ``pyproject.toml``; the local cluster is a distribution of its own (``localkube/``).
"""

import os

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

PACKAGES = ("kitlib*", "trainyard_kit*")
FOLDERS = {
    f"kitlib.data.{name}": name
    for name in ("docs", "images", "manifests", "notebooks", "programs", "tools", "trainers")
}
TOOLS = ("run_notebooks",)  # of tools, those that commands of the kit start
PROGRAMS = ("trainyard-kit-controlplane", "trainyard-kit-operators")
NEEDED = "{}=={}; sys_platform == 'linux' and platform_machine in 'x86_64 aarch64'"


class Metadata(egg_info):
    """Adds what a release requires, which pyproject.toml cannot say of a release alone."""

    def finalize_options(self) -> None:
        super().finalize_options()
        for name in PROGRAMS if os.environ.get("TRAINYARD_RELEASE") else ():
            needed = NEEDED.format(name, self.distribution.get_version())
            if needed not in self.distribution.extras_require["local"]:
                self.distribution.extras_require["local"].append(needed)


class Modules(build_py):
    """Leaves out the tools that only a checkout needs."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        return [row for row in modules if package != "kitlib.data.tools" or row[1] in TOOLS]


setup(
    packages=[*find_packages(include=PACKAGES), *FOLDERS],
    package_dir=FOLDERS,
    cmdclass={"egg_info": Metadata, "build_py": Modules},
)
