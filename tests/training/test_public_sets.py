import re

import pytest

from hf_vanilla_transformer.training.public_sets import read_public_sets


def test_sources_and_references(public_set):
    public_set("wmt14", "en-de", ["Ein Hund .", "Zwei\u2028Hunde ."], ["Eine Hündin .", "Hunde ."])
    public_set("multi30k/2016", "en-de", ["Ein Mann ."])
    found = read_public_sets(["wmt14", "multi30k/2016"], "en-de")
    assert found.sources == ["source 0 of wmt14", "source 1 of wmt14", "source 0 of multi30k/2016"]
    assert found.references == [["Ein Hund .", "Eine Hündin ."], ["Zwei\u2028Hunde .", "Hunde ."], ["Ein Mann ."]]


@pytest.mark.parametrize(
    ("names", "langpair", "message"),
    [
        (["multi30/2016"], "en-de", "`sets` multi30/2016 is not a test set of sacreBLEU; did you mean multi30k/2016?"),
        (["wmt14", "x"], "en-de", "`sets` x is not a test set of sacreBLEU; `sacrebleu --list` lists them"),
        (["multi30k/2016"], "de-en", "`langpair` de-en is not in multi30k/2016, which has en-fr, en-de, en-cs"),
    ],
)
def test_unknown_names(names, langpair, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_public_sets(names, langpair)


def test_without_a_network(public_set, capfd):
    folder = public_set("wmt14", "en-de", ["x"], data=["http://127.0.0.1:9/wmt14.tar.gz"])
    with pytest.raises(ValueError, match=f"test set wmt14 is not in {folder} and cannot be downloaded") as caught:
        read_public_sets(["wmt14"], "en-de")
    assert "\n" not in str(caught.value) and "give files of your own as `references`" in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_damaged_files(public_set, capfd):
    folder = public_set("wmt14", "en-de", ["x"], md5=["0" * 32] * 2)
    with pytest.raises(ValueError, match=f"wmt14 cannot be read: the download is damaged; delete {folder} and try"):
        read_public_sets(["wmt14"], "en-de")
    folder = public_set("wmt15", "en-de", ["one", "two"], ["one"])
    with pytest.raises(ValueError, match=f"test set wmt15 cannot be read: .*; delete {folder} and try again"):
        read_public_sets(["wmt15"], "en-de")
    assert capfd.readouterr() == ("", "")
