"""EKS clusters as CloudFormation stacks; needs boto3, which the extra ``clouds`` installs."""

from importlib.util import find_spec

if find_spec("boto3") is None:
    raise ModuleNotFoundError("No module named 'boto3'", name="boto3")
