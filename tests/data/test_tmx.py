import gzip
import random

import pytest

from fuzzing import one_line
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.reading import load_files
from hf_vanilla_transformer.data.tmx import read_tmx
from hf_vanilla_transformer.errors import DataError

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US"><note>no</note></header><body>
<tu><tuv xml:lang="EN-us"><seg>A <bpt i="1">&lt;b></bpt>red<ept i="1"/> <hi>dog</hi> &amp;
  cat.</seg></tuv><tuv xml:lang="de-DE"><note>no</note><seg>Ein Hund.</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>No</seg></tuv><tuv xml:lang="fr"><seg>Non</seg></tuv></tu>
<tu><tuv lang="en-GB"><seg>x</seg></tuv><tuv lang="en"><seg>Two</seg></tuv><tuv lang="de"><seg>Zwei</seg></tuv></tu>
</body></tmx>
"""


def load(path, streaming=False, **languages):
    languages = languages or {"source_lang": "en", "target_lang": "de"}
    arguments = DataArguments(train_file=str(path), streaming=streaming, cache_dir=str(path.parent), **languages)
    return list(load_files((str(path),), arguments))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["x.tmx", "x.tmx.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_pairs_of_two_languages(tmp_path, name, encoding, streaming):
    content = TMX.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert load(tmp_path / name, streaming) == [
        {"source": "A red dog & cat.", "target": "Ein Hund."},
        {"source": "Two", "target": "Zwei"},
    ]


BOMB = '<!DOCTYPE x [<!ENTITY a "aa">\n<!ENTITY b "&a;&a;">]>\n<tmx><tu>&b;</tu></tmx>'


@pytest.mark.parametrize(
    "content, languages, message",
    [
        (TMX.replace("</hi>", ""), {}, "x.tmx, line 5: not XML (mismatched tag"),
        (TMX[:-20], {}, "x.tmx, line 7: not XML ("),
        (BOMB, {}, "x.tmx, line 1: entity declarations are not allowed"),
        (TMX, {"source_lang": "en", "target_lang": "it"}, "x.tmx: no unit has en and it, only de, de-de, en, "),
        (
            TMX,
            dict.fromkeys(("source_lang", "target_lang")),
            "x.tmx: TMX may have many languages; set `source_lang` and `target_lang`",
        ),
        ("<tmx/>", {}, "x.tmx: no pairs in it"),
        (TMX.encode("utf-16")[:-3], {}, "x.tmx is no complete UTF-16 ("),
        (TMX[:-20].encode("utf-16"), {}, "x.tmx, line 7: not XML ("),
    ],
)
def test_faults_are_named(tmp_path, content, languages, message):
    (tmp_path / "x.tmx").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as error:
        load(tmp_path / "x.tmx", **languages)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_damaged_files_are_read_or_refused(tmp_path, encoding):
    chance = random.Random(encoding)
    content = TMX.encode(encoding)
    for _ in range(200):
        start, place = chance.randrange(len(content)), chance.randrange(len(content))
        part = content[start : start + chance.choice((1, 2, 30))]
        cut = content[:start] + content[start + len(part) :]
        (tmp_path / "x.tmx").write_bytes(chance.choice((cut, content[:place] + part + content[place:])))
        try:
            pairs = list(read_tmx(str(tmp_path / "x.tmx"), "en", "de"))
        except DataError as error:
            assert "x.tmx" in one_line(error)
        else:
            assert all(pair.keys() == {"source", "target"} for _, pair in pairs)
