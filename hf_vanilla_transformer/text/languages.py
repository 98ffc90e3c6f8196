"""Language detection with py3langid."""

import re
from collections.abc import Collection
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from ..errors import DataError
from ..extras import install_command

# py3langid's code for three-letter ISO 639 codes and other codes that models use.
_ALIASES = dict(
    pair.split("=")
    for pair in (
        "afr=af als=sq amh=am ara=ar arb=ar asm=as aze=az azj=az bak=ba bel=be ben=bn bos=bs bul=bg cat=ca "
        "ces=cs cmn=zh cym=cy dan=da deu=de dzo=dz ell=el eng=en epo=eo est=et eus=eu fao=fo fas=fa ff=fuv "
        "fin=fi fra=fr fry=fy gaz=om gla=gd gle=ga glg=gl gn=gug grn=gug guj=gu hat=ht hau=ha heb=he hin=hi "
        "hrv=hr hun=hu hye=hy ibo=ig ind=id isl=is ita=it iw=he jav=jv jpn=ja kan=kn kat=ka kaz=kk khk=mn khm=km "
        "ki=kik kin=rw kir=ky kmr=ku kor=ko lao=lo lav=lv lin=ln lit=lt ltz=lb lug=lg lvs=lv mal=ml mar=mr "
        "mkd=mk mlg=mg mlt=mt mon=mn msa=ms mya=my nb=no nep=ne nld=nl nno=nn nob=no nor=no npi=ne ns=nso oci=oc "
        "ori=or orm=om ory=or pan=pa pbt=ps pes=fa plt=mg pol=pl por=pt prs=fa pus=ps que=qu quy=qu ron=ro "
        "rus=ru san=sa sin=si slk=sk slv=sl sme=se sna=sn som=so sot=st spa=es sqi=sq srp=sr swa=sw swe=sv "
        "swh=sw tam=ta tat=tt tel=te tgk=tg tgl=tl tha=th tuk=tk tur=tr uig=ug ukr=uk urd=ur uzb=uz uzn=uz "
        "vie=vi xho=xh yor=yo zho=zh zsm=ms zul=zu"
    ).split()
)

# Languages and scripts written from right to left.
_RIGHT_TO_LEFT = frozenset(
    "acm acq aeb ajp apc ar arc ars ary arz ckb dv fa glk he khw ks lrc mzn nqo ps sd skr syr ug ur yi ydd "
    "adlm arab aran hebr mand nkoo rohg samr syrc thaa".split()
)

# Characters that suffice for detection.
_ENOUGH = 4000

# Label for numbers, markup and the like. Excluded, so that a sentence with many of them keeps its language.
_NO_LANGUAGE = "zxx"


def is_installed() -> bool:
    return find_spec("py3langid") is not None


def is_known(language: str) -> bool:
    """Whether a language can be detected; `language` is a code as models use it: "de", "pt-BR", "deu_Latn"."""
    return base_code(language) in _identifier().labels


def detect(text: str, among: Collection[str]) -> tuple[str, float]:
    """Return the likeliest of the given languages for a text, and its probability; 0 for a text without letters.

    Raises:
        DataError: A language cannot be detected, or py3langid is missing.
    """
    codes, text = {language: _known_code(language) for language in among}, text[:_ENOUGH]
    ranked = _identifier().rank(text)
    scores = dict(ranked)
    best = max(codes, key=lambda language: scores[codes[language]])
    score, total = scores[codes[best]], sum(scores[code] for code in {*codes.values()})
    if not _has_letters(text) or total == 0:
        return best, 0.0
    # Lower if a language that was not given is likelier.
    return best, score / total * score / ranked[0][1]


def odds_against(text: str, language: str) -> float:
    """Return how many times likelier the best language is than the given one; 1 for a text without letters.

    Works for short texts too, unlike the probability of the likeliest language, which related languages share.

    Raises:
        DataError: The language cannot be detected, or py3langid is missing.
    """
    own, identifier = _known_code(language), _identifier()
    # `classify` takes half the time of `rank`.
    if not _has_letters(text) or identifier.classify(text)[0] == own:
        return 1.0
    ranked = identifier.rank(text)
    # The probability underflows to 0 in single precision.
    return float(ranked[0][1] / max(dict(ranked)[own], 1e-30))


def _has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))


def _known_code(language: str) -> str:
    if not is_known(language):
        raise DataError(f"py3langid does not support the language {language!r}; it cannot be detected")
    return base_code(language)


def base_code(language: str) -> str:
    code = re.split("[-_]", language.lower(), maxsplit=1)[0]
    return _ALIASES.get(code, code)


def is_right_to_left(language: str) -> bool:
    """Whether a language is written from right to left, as its script tells, if named: "ar", "az-Arab", "heb_Hebr"."""
    script = re.search("[-_]([a-z]{4})(?![a-z])", language.lower())
    return (script[1] if script else base_code(language)) in _RIGHT_TO_LEFT


@lru_cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ModuleNotFoundError as error:
        raise DataError(
            f"detecting languages needs the package {error.name}; run `{install_command('languages')}`"
        ) from None
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages({*identifier.labels} - {_NO_LANGUAGE})
    return identifier
