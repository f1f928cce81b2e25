"""A fake AWS for tests: boto3 speaks to it over HTTP, and time passes only as fast as a test says.

moto answers for most services. What it lacks is here: CloudFormation with stacks that take their time and
fail, EKS, targets of schedules that are called, quotas, and what EC2 refuses to delete.
"""

from .server import FakeAws

__all__ = ["FakeAws"]
