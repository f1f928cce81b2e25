"""The resources of a GKE cluster, by Google's libraries, which the extra ``clouds`` installs."""

from importlib.util import find_spec

if find_spec("googleapiclient") is None:
    raise ModuleNotFoundError("No module named 'googleapiclient'", name="googleapiclient")
