"""Folders of models with damaged files: one line that names the place, or a right result.

A result is right if every weight of the model is the one in its file, and, where the files say what they said before,
so is the translation. Other weights, words or settings that are well-formed make another model, which nothing can tell
from one that was meant.
"""

import pytest

from damage import outcomes
from damaged_models import KINDS, try_models
from reliability import cases


@pytest.mark.slow
def test_damaged_folders(tried):
    count = outcomes(try_models, cases(30, 2500), len(KINDS))
    tried("damaged model folders, loaded and used: a right result, or one line that names the place", count)
