"""Which language a text is in, by the library py3langid."""

import re
from collections.abc import Collection
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from ..errors import DataError

# ISO 639 codes of three letters, and others that models use, of languages that the library knows by another code.
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

# Characters that are enough to tell the language.
_ENOUGH = 4000

# What is no language: numbers, markup. Not among the answers, so that a sentence with many of them keeps its language.
_NO_LANGUAGE = "zxx"


def is_installed() -> bool:
    return find_spec("py3langid") is not None


def is_known(language: str) -> bool:
    """Whether texts in a language can be recognized; its code is as models have it: "de", "pt-BR", "deu_Latn"."""
    return _code(language) in _identifier().labels


def detect(text: str, among: Collection[str]) -> tuple[str, float]:
    """Return the likeliest of one or more languages of a text, and its probability, 0 for a number or the like.

    Raises:
        DataError: A language cannot be recognized, or the library is missing.
    """
    codes, text = {language: _known_code(language) for language in among}, text[:_ENOUGH]
    ranked = _identifier().rank(text)
    scores = dict(ranked)
    best = max(codes, key=lambda language: scores[codes[language]])
    score, total = scores[codes[best]], sum(scores[code] for code in {*codes.values()})
    if not _has_letters(text) or total == 0:
        return best, 0.0
    # Less where a language that was not asked for is likelier.
    return best, score / total * score / ranked[0][1]


def odds_against(text: str, language: str) -> float:
    """Return how many times as likely as a language another one is; 1 for a text in that one, or in none.

    Unlike the probability of the likeliest language, which related ones share, this tells in short texts too.

    Raises:
        DataError: The language cannot be recognized, or the library is missing.
    """
    own, identifier = _known_code(language), _identifier()
    # Half the time of a ranking.
    if not _has_letters(text) or identifier.classify(text)[0] == own:
        return 1.0
    ranked = identifier.rank(text)
    # Of an impossible language 0, in single precision.
    return float(ranked[0][1] / max(dict(ranked)[own], 1e-30))


def _has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))


def _known_code(language: str) -> str:
    if not is_known(language):
        raise DataError(f"py3langid does not know the language {language!r}; it cannot be detected")
    return _code(language)


def _code(language: str) -> str:
    code = re.split("[-_]", language.lower(), maxsplit=1)[0]
    return _ALIASES.get(code, code)


@lru_cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ModuleNotFoundError as error:
        raise DataError(
            f"detecting languages needs the package {error.name}; run "
            '`pip install "hf-vanilla-transformer[languages]"`'
        ) from None
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages({*identifier.labels} - {_NO_LANGUAGE})
    return identifier
