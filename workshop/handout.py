"""What attendees get: a kubeconfig each, and a page that says what to do with it; all of it in one file.

The file is for the instructor, who hands its folders out: whoever has a kubeconfig is that attendee.
"""

import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from workshop import namespaces
from workshop.namespaces import Attendee

FILE = "handout.zip"
PAGE = """\
You are "{name}" in the workshop on the cluster "{cluster}".

The file kubeconfig beside this page is your key: whoever has it can do what you can. It leads to the
namespace {namespace}, and to nothing else, until {expires}.
{jupyter}
On a machine of your own, with kubectl and a clone of the kit:

    make setup
    KUBECONFIG=/where/you/put/it/kubeconfig make lab

In the second cell of each notebook write: provider = "existing"

While you work, your notebooks tell the instructor which cell runs, and the first line of an error; neither
your code nor its output. If you would rather not: kubectl delete configmap whereabouts
"""


def write(cluster: str, every: Iterable[Attendee], *, jupyter: Mapping[str, str]) -> Path:
    """Write a folder for each attendee into one file that this user alone can read, and return its path.

    Args:
        cluster: Its name.
        every: The attendees.
        jupyter: Lines on the JupyterLab of each, by name; empty if they have their own.
    """
    path = namespaces.kubeconfig(cluster, "any").with_name(FILE)
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    with (
        os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for each in every:
            page = PAGE.format(**vars(each), cluster=cluster, jupyter=jupyter.get(each.name, ""))
            for name, text in (("kubeconfig", each.kubeconfig.read_text()), ("start.txt", page)):
                entry = zipfile.ZipInfo(f"{each.name}/{name}")
                entry.external_attr = 0o600 << 16  # whoever unpacks it keeps it to themselves
                packed.writestr(entry, text)
    aside.replace(path)
    return path
