"""What AWS says of requests that fail, in the kit's words. The answers are botocore's own error objects."""

import json

import pytest
from botocore import exceptions as boto

from clouds.aws.client_errors import AwsError, to_error
from clouds.aws.session import AwsSession
from kitlib.errors import BadInput, KitError


def told(error: Exception) -> KitError:
    names = {"clusterName": "lab"}
    return to_error(error, "eks", "create_nodegroup", names, region="eu-central-1", profile="class")


def answer(code: str, words: str = "no") -> boto.ClientError:
    return boto.ClientError({"Error": {"Code": code, "Message": words}}, "CreateNodegroup")


def test_a_denied_action_is_named_with_the_statement_that_would_allow_it() -> None:
    words = (
        "User: arn:aws:iam::123456789012:user/ada is not authorized to perform: eks:CreateNodegroup on "
        "resource: arn:aws:eks:eu-central-1:123456789012:cluster/lab"
    )
    error = told(answer("AccessDeniedException", words))
    assert "arn:aws:iam::123456789012:user/ada may not do eks:CreateNodegroup" in error.what
    statement = json.loads(error.fix[error.fix.index("{") : error.fix.index("}") + 1])
    assert statement == {
        "Effect": "Allow",
        "Action": "eks:CreateNodegroup",
        "Resource": "arn:aws:eks:eu-central-1:123456789012:cluster/lab",
    }
    assert "no permission of yours" in told(answer("AccessDenied", words + " with an explicit deny")).fix


@pytest.mark.parametrize(
    ("error", "words", "passing"),
    [
        (answer("ExpiredToken"), "have expired", False),
        (answer("UnrecognizedClientException"), "does not know these credentials", False),
        (answer("SignatureDoesNotMatch", "Signature expired: 2020 is now earlier"), "clock is wrong", False),
        (answer("RequestTimeTooSkewed"), "clock is wrong", False),
        (answer("ThrottlingException"), "go slower", True),
        (answer("InsufficientInstanceCapacity"), "none of these to give", False),
        (answer("VcpuLimitExceeded"), "quota is used up", False),
        (answer("InvalidRequestException", "not so"), "AWS refused: not so", False),
        (answer("ServiceUnavailable"), "AWS failed", True),
        (answer("ResourceInUseException", "a node group"), "it is in use: a node group", True),
        (boto.NoCredentialsError(), "no credentials", False),
        (boto.UnauthorizedSSOTokenError(), "sign-in has expired", False),
        (boto.EndpointConnectionError(endpoint_url="https://eks"), "network does not reach", True),
        (boto.ReadTimeoutError(endpoint_url="https://eks"), "network does not reach", True),
    ],
)
def test_each_way_to_fail_has_its_words(error: Exception, words: str, passing: bool) -> None:
    said = told(error)
    assert words in said.what
    assert isinstance(said, AwsError) and said.passing is passing
    assert "lab in eu-central-1" in said.about and said.fix


def test_a_region_with_a_typo_is_refused_with_those_that_are_near() -> None:
    with pytest.raises(BadInput, match="eu-central-1"):
        AwsSession("eu-centrl-1")


def test_a_profile_that_no_file_has_is_refused() -> None:
    with pytest.raises(BadInput, match='"nobody"'):
        AwsSession("eu-central-1", profile="nobody")
