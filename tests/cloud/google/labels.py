"""What labels of Google Cloud may be: https://cloud.google.com/compute/docs/labeling-resources#requirements.

International letters, which are allowed as well, are not known here.
"""

import re
from collections.abc import Mapping

from .api_errors import ApiError

_KEY, _VALUE = re.compile(r"[a-z][-_a-z0-9]{0,62}"), re.compile(r"[-_a-z0-9]{0,63}")


def check(labels: Mapping[str, str], field: str) -> None:
    """Refuse labels that are none.

    Raises:
        ApiError: A key or a value has what it may not have, or there are more than 64.
    """
    wrong = [each for each in labels if not _KEY.fullmatch(each)]
    wrong += [each for each in labels.values() if not _VALUE.fullmatch(each)]
    if wrong or len(labels) > 64:
        said = (
            f"Label '{wrong[0]}' violates format constraints." if wrong else "There are more than 64 labels."
        )
        raise ApiError(
            "INVALID_ARGUMENT",
            f"Invalid value for field '{field}'. {said} It can only contain lowercase letters, numeric "
            "characters, underscores and dashes, and at most 63 of them. A key begins with a letter.",
        )
