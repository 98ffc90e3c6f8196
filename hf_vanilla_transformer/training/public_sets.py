"""Public test sets by sacreBLEU's names, downloaded once and cached by sacreBLEU."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError

from ..errors import did_you_mean, not_downloaded, one_line
from ..extras import install_command
from ..files import read_lines

try:
    from sacrebleu import utils
    from sacrebleu.dataset import DATASETS
except ImportError as error:
    raise ImportError(
        f"{__name__} needs the package {error.name!r}; install it with `{install_command('train')}`"
    ) from error


class PublicSet(NamedTuple):
    """Source sentences and the references of each."""

    sources: list[str]
    references: list[list[str]]


def read_public_sets(names: Sequence[str], langpair: str) -> PublicSet:
    """Read and concatenate test sets, such as "wmt14/full", for a language pair, such as "en-de".

    Sets that are not yet in sacreBLEU's folder are downloaded.

    Raises:
        ValueError: A set or its language pair is unknown, or the set can be neither read nor downloaded.
    """
    for name in names:
        if name not in DATASETS:
            advice = did_you_mean(name, DATASETS) or "; `sacrebleu --list` lists them"
            raise ValueError(f"`sets` {name} is not a test set of sacreBLEU{advice}")
        if langpair not in (pairs := DATASETS[name].langpairs):
            raise ValueError(f"`langpair` {langpair} is not in {name}, which has {', '.join(pairs)}")
    public = PublicSet([], [])
    for name in names:
        with _one_line_errors(name):
            columns = [list(read_lines(path)) for path in utils.get_reference_files(name, langpair)]
            sources = list(read_lines(utils.get_source_file(name, langpair)))
            references = [list(row) for _, *row in zip(sources, *columns, strict=True)]
        public.sources.extend(sources)
        public.references.extend(references)
    return public


@contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """Turn any failure into a one-line ValueError; sacreBLEU logs some errors and ends the program."""
    folder, logger = Path(utils.SACREBLEU_DIR, name), logging.getLogger("sacrebleu")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except URLError as error:
        raise ValueError(
            f"test set {name} is not in {folder} and {not_downloaded(error)}, or give files of your own as "
            "`references`"
        ) from error
    except (Exception, SystemExit) as error:
        reason = "the download is damaged" if isinstance(error, SystemExit) else one_line(error)
        raise ValueError(f"test set {name} cannot be read: {reason}; delete {folder} and try again") from error
    finally:
        logger.setLevel(level)
