import gzip

import pytest

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.reading import load_files
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
def test_pairs_of_two_languages(tmp_path, name, streaming):
    content = TMX.encode()
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
    ],
)
def test_faults_are_named(tmp_path, content, languages, message):
    (tmp_path / "x.tmx").write_text(content)
    with pytest.raises(DataError) as error:
        load(tmp_path / "x.tmx", **languages)
    assert message in str(error.value) and "\n" not in str(error.value)
