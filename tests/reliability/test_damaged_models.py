"""Model folders with damaged files give either a correct result or one line that names the place.

A result is correct if every weight equals the one in its file and, if the content of the files is unchanged, the
translation is unchanged too. Different but well-formed weights, words or settings are simply another model.
"""

import pytest

from damage import outcomes
from damaged_models import KINDS, try_models
from reliability import cases


@pytest.mark.slow
def test_damaged_folders(tried):
    count = outcomes(try_models, cases(30, 2500), len(KINDS))
    tried("damaged model folders, loaded and used: a right result, or one line that names the place", count)
