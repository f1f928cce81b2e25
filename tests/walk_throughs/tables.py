"""The tables of docs/walk-throughs.md: published commands, ours, and the cell that explains them."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "walk-throughs.md"
COLUMNS = ["Theirs", "Ours, in a terminal", "In the course"]
PROGRAMS = ("aws", "cat", "elasticdl", "kubectl", "sed", "trainyard")
CLOUD = "*on a cloud*"
QUICK = "*in minutes*"
# The published page of each table.
PAGES = {
    "GKE Indexed Job": "gke-indexed-job",
    "Kubeflow PyTorchJob": "kubeflow-pytorchjob",
    "EKS distributed training workshop": "eks-distributed-training-workshop",
    "TorchElastic on EKS": "torchelastic-eks",
    "ElasticDL on GKE": "elasticdl-gke",
}


def tables() -> dict[str, list[list[str]]]:
    """List the rows of each table by its heading."""
    by_title = {}
    for part in re.split(r"^## ", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, *lines = part.splitlines()
        table = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines if line.startswith("|")]
        rows = [[cell.strip().replace("\\|", "|") for cell in row] for row in table]
        if rows and rows[0] == COLUMNS:
            by_title[title] = rows[2:]
    return by_title


def codes(cell: str) -> list[str]:
    """List what a cell has between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def ours(cell: str, *, cloud: bool, quick: bool = False) -> list[str]:
    """List the commands of a cell: for every cluster, the quick ones in their stead, or for a cloud."""
    common, _, rest = cell.partition(CLOUD)
    whole, _, few = common.partition(QUICK)
    local = few if quick and few else whole
    return [code for code in codes(rest if cloud else local) if code.split()[0] in PROGRAMS]
