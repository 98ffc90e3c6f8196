"""A Markdown parser that knows the syntax of documentation tools, and where in the source each inline token is."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

# Attributes of Pandoc, MkDocs and kramdown: `{.class #id key=value}`, `{: .class }`.
ATTRIBUTES = r"""\{:?[^\S\n]*+(?:[#.][\w-]|[\w-]++=|-\})(?:[^{}"\n]|"[^"\n]*+")*+\}|\{:[^{}\n]++\}"""
_BRACES = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}"
# A component of MDX, whose name has both cases, unlike HTML in uppercase; those of transformers start with "hf".
COMPONENT = (
    rf"""</?(?:[A-Z][\w.]*?[a-z][\w.]*+|hf\w++)(?:[^<>{{}}"'\w.](?:[^<>{{}}"']|"[^"]*+"|'[^']*+'|{_BRACES})*+)?>"""
)
STATEMENT = r"\{%(?:[^%\n]|%(?!\}))*+%\}|\{\{[<%](?:[^{}\n]|\}(?!\}))*+\}\}"
COMMENT = r"\{/\*(?:[^*{]|\{(?!/\*)|\*(?!/))*+\*/\}"
_COLUMNS = r"[ ]*+-{2,}+(?:[ ]++-{2,}+)++[ ]*+\n"

# Directives of MyST whose argument is prose, and whose body alone is.
_TITLED = frozenset(
    "admonition attention card caution danger deprecated dropdown epigraph error example exercise grid-item-card "
    "highlights hint important list-table margin note pull-quote seealso sidebar tab-item table tip todo topic "
    "versionadded versionchanged versionremoved warning".split()
)
_UNTITLED = frozenset("container div figure figure-md glossary grid grid-item only solution tab-set".split())

# A line or block of markup other than CommonMark's:
# - verbatim lines; `paragraph`: up to a blank line
# - `prefix`: markup before a block, which goes on in lines with its indentation
# - titles; after `indented` ones, the indented lines are a block
_MARKUP = re.compile(
    rf"""(?:
    (?P<paragraph>
        \\begin\{{ | \\\[[ ]*+$ | \[\[autodoc\]\]
        | \+(?:[-=:]{{3,}}\+)+[ ]*+$ | (?:[^\S\n]*+\S[^\n]*+\n)?{_COLUMNS}(?=[^\S\n]*+\S)
        | import[ ](?:[^\n'"]*[ ]from[ ])?["'][^"'\n]++["'];?[ ]*$ | import[ ]\{{[ ]*$
        | export[ ](?:const|let|async|function)[ ] | export[ ](?:default[ ])?[{{(*]
    )
    | -{{5,}}[ ]*\n(?:[^\n]+\n){{1,9}}?{_COLUMNS}(?:[^\n]*\n){{1,500}}?[ ]*-{{5,}}[ -]*$
    | \$\$(?:[^$]|\$(?!\$))*+\$\$[ ]*+(?:\([\w:-]+\)|{ATTRIBUTES})?[ ]*$
    | (?:(?:{COMPONENT}|{STATEMENT}|{COMMENT}|{ATTRIBUTES}|</?>)[ ]*+)++$
    | </[a-z][\w-]*+>[ ]*$ | <[a-z]+\b[^<>\n]*\smarkdown\b[^<>\n]*>[ ]*$
    | (?:\([\w.:-]+\)=|:[\w-]+:|\+\+\+|\\[a-zA-Z]+(?:\[[^\]\n]*\]|\{{[^{{}}\n]*\}})*)[ ]*$ | (?:%[ ]|-+8<-)[^\n]*$
    | (?P<prefix>(?:\[\^[^\]\s]++\]:|\*\[[^\]\n]+\]:|(?::|\#\.|\(@[\w-]*\)|\|)(?=[ ]))[ ]*)
    | (?P<fence>`{{3,}}|~{{3,}}|:{{3,}})[ ]*\{{(?P<name>[\w:-]+)\}}(?:[ ]+(?P<argument>[^\n]*\S))?[ ]*$
    | (?P<indented>
        (?:(?:!!!|\?\?\?\+?)[ ]?(?:[\w|-][\w |-]*+)?(?<![!?+])|(?:={{3}}[+!]*|\?\?\?\+?)[ ]+)
        (?:(?<=[ ])"(?P<quoted>[^\n]*)")?[ ]*$
    )
    | :{{3,}}[ ]*(?:
        \{{(?:[^{{}}\n]*?\btitle="(?P<named>[^"\n]+)")?[^{{}}\n]*\}}
        | [\w./-]+(?:\[(?P<bracketed>[^\]\n]+)\]|[ ]++(?P<plain>[^\s{{:](?:[^\n{{]*[^\s{{:])?))?
          (?:[ ]*+\{{[^{{}}\n]*\}})?
      )?[ ]*+:*+[ ]*+$
    | ///[ ]*(?:html\b[^\n]*|[\w-]*(?:[ ]*\|[ ]*(?P<block>[^\n]*\S))?)[ ]*$
    | \[![\w-]+\][+-]?[ ]*(?P<alert>(?:[^\n]*\S)?)[ ]*$
    )""",
    re.VERBOSE | re.MULTILINE,
)
# Titles, each with the characters to escape in it.
_TITLES = {"argument": "", "quoted": "", "named": '"', "bracketed": "[]", "plain": "", "block": "", "alert": ""}
_NONBLANK = re.compile(r"[^\n]*(?:\n[ \t]*+[^\s][^\n]*)*")
_OPTION = re.compile(r"[ \t]*:[\w-]+:")


def _markup(state: "StateBlock", start: int, end: int, silent: bool) -> bool:
    """Block rule for `_MARKUP`: titles become inline tokens, all other markup no tokens."""
    begin = state.bMarks[start] + state.tShift[start]
    match = None if state.is_code_block(start) else _MARKUP.match(state.src, begin)
    if not match:
        return False
    name = match["name"]
    if name and match["fence"][0] != ":" and name not in _TITLED | _UNTITLED:
        return False
    if silent:
        return True
    stop = _NONBLANK.match(state.src, begin) if match["paragraph"] else match
    state.line = min(end, start + 1 + state.src.count("\n", begin, stop.end() if stop else 0))
    for title, special in _TITLES.items():
        if match[title] and (title != "argument" or name in _TITLED):
            token = state.push("inline", "", 0)
            token.content, token.map, token.children = match[title].strip(), [start, start + 1], []
            token.meta |= {"column": match.start(title) - state.src.rfind("\n", 0, begin) - 1, "special": special}
    if name:
        return _directive(state, start, end, match)
    if match["indented"]:
        _nested(state, start + 1, end, state.sCount[start] + 4)
    elif match["prefix"]:
        _prefixed(state, start, end, match)
    return True


def _directive(state: "StateBlock", start: int, end: int, match: re.Match[str]) -> bool:
    """Read the body of a directive, if it is prose."""
    fence, first = match["fence"], start + 1
    close = re.compile(rf"[ ]*{fence}{fence[0]}*[ ]*$", re.MULTILINE)
    lines = (line for line in range(first, end) if close.match(state.src, state.bMarks[line]))
    last = next(lines, end)
    while first < last and _OPTION.match(state.src, state.bMarks[first]):
        first += 1
    if match["name"] in _TITLED | _UNTITLED:
        _nested(state, first, last, state.blkIndent)
    state.line = min(end, last + 1)
    return True


def _prefixed(state: "StateBlock", start: int, end: int, match: re.Match[str]) -> None:
    """Read the block after a prefix as an item of a list is read."""
    marks = state.bMarks[start], state.tShift[start], state.sCount[start]
    is_definition = match["prefix"][0] == ":"
    indent = marks[2] + (len(match["prefix"]) if is_definition else 4)
    first = start + (match.end() >= state.eMarks[start])
    state.bMarks[start], state.tShift[start], state.sCount[start] = match.end(), 0, indent
    _nested(state, first, end, indent)
    state.bMarks[start], state.tShift[start], state.sCount[start] = marks


def _nested(state: "StateBlock", start: int, end: int, indent: int) -> None:
    saved = state.blkIndent, state.lineMax, state.parentType
    state.blkIndent, state.lineMax, state.parentType = indent, end, "root"
    state.level += 1
    state.line = start
    state.md.block.tokenize(state, start, end)
    state.level -= 1
    state.blkIndent, state.lineMax, state.parentType = saved


class Parser:
    """The tokens of blocks, each with its lines, and of the text in them, each with its span."""

    def __init__(self) -> None:
        self._parser, self._state = _parser()
        self._environment: dict[str, Any] = {}

    def blocks(self, content: str) -> "list[Token]":
        return self._parser.parse(content, self._environment)

    def is_label(self, text: str) -> bool:
        """Whether a link is defined for a label."""
        from markdown_it.common.utils import normalizeReference

        return normalizeReference(text) in self._environment.get("references", ())

    def inline(self, raw: str) -> "list[Token]":
        """Return the inline tokens other than plain text, with their spans."""
        state = self._state(raw, self._parser, self._environment, [])
        self._parser.inline.tokenize(state)
        for rule in self._parser.inline.ruler2.getRules(""):
            rule(state)
        tokens = [token for token in state.tokens if "span" in token.meta]
        # Of two asterisks, one is the token and the other an empty text.
        for one, other in pairwise(tokens):
            if other.type == "strong_open" and not one.content and one.type == "text":
                other.meta["span"] = one.meta["span"][0], other.meta["span"][1]
            elif one.type == "strong_close" and not other.content and other.type == "text":
                one.meta["span"] = one.meta["span"][0], other.meta["span"][1]
        return [token for token in tokens if token.type != "text" or token.content]


def _parser() -> "tuple[MarkdownIt, type[StateInline]]":
    """Return a parser that records the spans of inline tokens, and the inline state that this requires."""
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

    class State(StateInline):
        def push(self, ttype: str, tag: str, nesting: Any) -> Token:
            token = super().push(ttype, tag, nesting)
            token.meta["span"] = (self.pos, self.pos)
            return token

    def recorded(name: str, rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
        def run(state: StateInline, silent: bool) -> bool:
            start, count = state.pos, len(state.tokens)
            if not rule(state, silent):
                return False
            pushed = [token for token in state.tokens[count:] if "span" in token.meta]
            if silent or not pushed:
                return True
            if name == "link":
                begin, end = pushed[0].meta["span"][0], pushed[-1].meta["span"][0]
                pushed[0].meta["span"], pushed[-1].meta["span"] = (start, begin), (end, state.pos)
                pushed[-1].meta["label"] = state.src[begin:end]
                return True
            for token in pushed:
                # Each asterisk of a run is a token.
                end = start + len(token.content) if name in ("emphasis", "strikethrough") else state.pos
                token.meta["span"] = (start, end)
                start = end if name in ("emphasis", "strikethrough") else start
            return True

        return run

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.block.ruler.before("fence", "markup", _markup, {"alt": ["paragraph", "reference"]})
    parser.disable("fragments_join")
    rules = zip(parser.get_active_rules()["inline"], parser.inline.ruler.getRules(""), strict=True)
    for name, rule in list(rules):
        parser.inline.ruler.at(name, recorded(name, rule))
    return parser, State
