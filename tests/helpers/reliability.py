"""How many cases the reliability tests try: a few in `make test`, all in `make test-reliability`."""

import os

FULL = os.environ.get("RELIABILITY") == "full"


def cases(few: int, all_of_them: int) -> int:
    """Return the number of cases of this run."""
    return all_of_them if FULL else few
