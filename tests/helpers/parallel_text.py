"""Pairs of sentences, and files with them."""

import gzip

ENGLISH = ["The cat sat on the mat.", "Don't sit, cat!", "A well-known cat sat (on two mats)?", "the mat, the cat"]
SPANISH = ["El gato se sentó en la alfombra.", "¡No te sientes, gato!", "¿Un gato conocido?", "la alfombra, el gato"]
PAIRS = [("a dog", "ein Hund"), ("two, cats", 'zwei "Katzen"'), ("the\x85end", "das Ende")]


def write(path, text):
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def lines(items):
    return "".join(f"{item}\n" for item in items)


def write_lines(path, items):
    return write(path, lines(items))


def tsv(pairs):
    return lines("\t".join(pair) for pair in pairs)


def rows(split):
    return [(row["source"], row["target"]) for row in split]
