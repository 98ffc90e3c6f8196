"""Tables of cases for one test."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import product
from typing import Any


def looped(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Any], Any]:
    """Run a test on all rows of a table, for cases too small to be tests of their own.

    Used like `pytest.mark.parametrize`. Every row that fails is reported, as a subtest; fixtures are made once.
    """
    names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
    rows = [tuple(row) if len(names) > 1 else (row,) for row in rows]

    def decorate(test: Any) -> Any:
        # A second table multiplies the rows.
        inner, inner_names, inner_rows = getattr(test, "table", (test, (), [()]))
        every_name, every_row = names + inner_names, [row + other for row, other in product(rows, inner_rows)]

        @wraps(inner)
        def run(*args: Any, subtests: Any, **fixtures: Any) -> None:
            for row in every_row:
                case = dict(zip(every_name, row, strict=True))
                with subtests.test(", ".join(f"{name}={value!r:.80}" for name, value in case.items())):
                    inner(*args, **fixtures, **case)

        signature = inspect.signature(inner)
        own = [each for each in signature.parameters.values() if each.name not in every_name]
        own.append(inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY))
        run.table, run.__signature__ = (inner, every_name, every_row), signature.replace(parameters=own)
        return run

    return decorate
