"""Bugs for C, by tokens: a comparison, a condition, a sum, a constant, a statement. Only inside functions; never in
comments, strings, preprocessor lines and declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.mutants.mutant import Mutant, made

__all__ = ["mutants"]

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|\#(?:[^\n\\]|\\.)*)
      |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
      |(?P<word>[A-Za-z_]\w*)
      |(?P<number>(?:0[xX][\da-fA-F]+|\d+\.?\d*(?:[eE][-+]?\d+)?)\w*)
      |(?P<operator><<=|>>=|\.\.\.|->|\+\+|--|&&|\|\||[<>=!]=|<<|>>|[-+*/%&|^]=|[^\w\s])""",
    re.VERBOSE | re.DOTALL,
)
_SWAPS = {
    "<": ["<=", ">"], "<=": ["<"], ">": [">=", "<"], ">=": [">"], "==": ["!="], "!=": ["=="],
    "&&": ["||"], "||": ["&&"],
    "+": ["-"], "-": ["+"], "+=": ["-="], "-=": ["+="], "++": ["--"],
}  # fmt: skip
_BINARY = {"+", "-", "<", ">"}
_KEYWORDS = {"return", "goto", "case", "default", "for", "while", "do", "switch", "else", "if", "break", "continue"}
_OPENING, _CLOSING = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}


class _Token(NamedTuple):
    kind: str
    text: str
    begin: int

    @property
    def end(self) -> int:
        return self.begin + len(self.text)


def mutants(file: str, source: str) -> list[Mutant]:
    """All that can be made of a file, in the order of its lines.

    >>> code = "int f(int a) { int b = 0; if (a < 2) b = a + 1; /* a < 2 */ return b; }"
    >>> [mutant.what for mutant in mutants("f.c", code)]
    ['0 -> 1', 'if negated', '< -> <=', '< -> >', '2 -> 3', 'statement dropped', '+ -> -', '1 -> 0']
    """
    found = []
    for name, body in _functions(_tokens(source)):
        for begin, end, new, what in _changes(body, source):
            found.append(made(file, name, source, begin, end, new, what))
    return found


def _tokens(source: str) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(source):
        kind = match.lastgroup or ""
        if kind != "skip":
            found.append(_Token(kind, match.group(), match.start()))
    return found


def _functions(tokens: list[_Token]) -> Iterator[tuple[str, list[_Token]]]:
    """The name and the body of each: a block at the outermost level that follows a closing parenthesis."""
    at = 0
    while at < len(tokens):
        if tokens[at].text == "{":
            end = _closing(tokens, at)
            if at and tokens[at - 1].text == ")":
                yield _name(tokens, at - 1), tokens[at + 1 : end]
            at = end
        at += 1


def _name(tokens: list[_Token], at: int) -> str:
    """The word before the parenthesis that closes at ``at``."""
    depth = 0
    while at:
        depth += (tokens[at].text == ")") - (tokens[at].text == "(")
        at -= 1
        if not depth:
            break
    return tokens[at].text


def _closing(tokens: list[_Token], at: int) -> int:
    """Where the bracket that opens at ``at`` closes."""
    depth = 0
    for place in range(at, len(tokens)):
        depth += (tokens[place].text in _OPENING) - (tokens[place].text in _CLOSING)
        if not depth:
            return place
    return len(tokens) - 1


def _changes(body: list[_Token], source: str) -> Iterator[tuple[int, int, str, str]]:
    """Where from, where to, what comes there, and its name."""
    for at, token in enumerate(body):
        before = body[at - 1] if at else None
        begins = (
            before is None
            or before.text in (";", "{", "}", "else")
            or (before.text == ")" and _ends_condition(body, at - 1))
        )
        if begins and (end := _statement(body, at)) is not None:
            yield token.begin, body[end].begin, "", "statement dropped"
        if token.text == "if" and at + 1 < len(body) and body[at + 1].text == "(":
            close = _closing(body, at + 1)
            condition = source[body[at + 1].end : body[close].begin]
            yield body[at + 1].end, body[close].begin, f"!({condition})", "if negated"
        if token.kind == "operator" and token.text in _SWAPS:
            operand = before is not None and (before.kind in ("word", "number", "string") or before.text in (")", "]"))
            if token.text not in _BINARY or (operand and before is not None and before.text not in _KEYWORDS):
                for new in _SWAPS[token.text]:
                    yield token.begin, token.end, new, f"{token.text} -> {new}"
        if token.kind == "number" and re.fullmatch(r"\d+[uUlL]*", token.text):
            digits = re.match(r"\d+", token.text)
            assert digits is not None
            new = str({0: 1, 1: 0}.get(int(digits[0]), int(digits[0]) + 1)) + token.text[digits.end() :]
            yield token.begin, token.end, new, f"{token.text} -> {new}"


def _ends_condition(body: list[_Token], at: int) -> bool:
    """Whether the parenthesis that closes at ``at`` belongs to an if, a for or a while."""
    depth = 0
    while at >= 0:
        depth += (body[at].text == ")") - (body[at].text == "(")
        at -= 1
        if not depth:
            break
    return at >= 0 and body[at].text in ("if", "for", "while")


def _statement(body: list[_Token], at: int) -> int | None:
    """Where the statement that begins at ``at`` has its semicolon, if it does something that may be left out: an
    assignment, a call, an increment, a break."""
    first = body[at]
    if first.text in ("break", "continue"):
        return at + 1
    if first.text in _KEYWORDS or first.kind not in ("word", "operator") or first.text in ("{", "}", ";"):
        return None
    end, acts = at, False
    while end < len(body) and body[end].text != ";":
        if body[end].text in _OPENING:
            acts |= body[end].text == "(" and end > at and body[end - 1].kind == "word"
            end = _closing(body, end)
        acts |= body[end].text in ("=", "+=", "-=", "|=", "&=", "++", "--")
        end += 1
    declares = (
        at + 1 < len(body)
        and first.kind == "word"
        and (
            body[at + 1].kind == "word"
            or (body[at + 1].text == "*" and at + 2 < len(body) and body[at + 2].kind == "word")
        )
    )
    return end if acts and not declares and end < len(body) else None
