"""An Amazon for tests: boto3 speaks to it over HTTP, and time passes only as fast as a test says.

moto answers for most services. What it lacks is in the modules beside this: EKS as a whole, whose things take
their time and fail; targets of schedules that are carried out; quotas and prices; what EC2 refuses to delete.
`server` has the control of it all, `FakeAmazon`.
"""

from .server import FakeAmazon

__all__ = ["FakeAmazon"]
