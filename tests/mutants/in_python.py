"""Bugs for Python, by its syntax tree: a comparison, a condition, arithmetic, a constant, a statement, a result. Only
inside functions; never in annotations, docstrings and texts."""

from __future__ import annotations

import ast
import copy
import marshal
from collections.abc import Iterator

from tests.mutants.mutant import Mutant, made

__all__ = ["mutants", "same_code"]

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Add, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def mutants(file: str, source: str) -> list[Mutant]:
    """All that can be made of a file, in the order of its lines.

    >>> code = "def f(a, b=1):\\n    if a < 2 and b:\\n        a.b = 3\\n    return a + b\\n"
    >>> [mutant.what for mutant in mutants("f.py", code)]
    ['if negated', 'and -> or', '< -> <=', '2 -> 3', 'statement dropped', '3 -> 4', 'returns None', '+ -> -']
    """
    found = []
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:  # columns count bytes
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())

    for name, node in _nodes(ast.parse(source)):
        for target, new, what in _changes(node):
            assert target.end_lineno is not None and target.end_col_offset is not None
            begin, end = place(target.lineno, target.col_offset), place(target.end_lineno, target.end_col_offset)
            found.append(made(file, name, source, begin, end, new, what))
    return found


def same_code(one: str, other: str) -> bool:
    """Whether two sources compile to the same, wherever their lines are; a source that does not compile is like any."""
    try:
        return _code(one) == _code(other)
    except (SyntaxError, ValueError):
        return True


def _code(source: str) -> bytes:
    return marshal.dumps(compile(ast.unparse(ast.parse(source)), "", "exec"))


def _nodes(tree: ast.AST, name: str = "", inside: bool = False) -> Iterator[tuple[str, ast.AST]]:
    """Every node inside a function with the function's name, outer ones first."""
    if isinstance(tree, ast.JoinedStr | ast.AnnAssign):  # whose places Python 3.11 does not know; declarations
        return
    if inside:
        yield name, tree
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "args") and isinstance(
            tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.arg
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                deeper = f"{name}.{child.name}" if name else child.name
                yield from _nodes(child, deeper, inside or not isinstance(child, ast.ClassDef))
            else:
                yield from _nodes(child, name, inside)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """What is replaced, by what, and its name."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"):
                yield test, f"(not ({ast.unparse(test)}))", "if negated"
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            new = copy.copy(node)
            new.ops = [_COMPARISONS[type(op)]()]
            yield node, f"({ast.unparse(new)})", f"{_sign(op)} -> {_sign(new.ops[0])}"
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            text = ast.unparse(ast.BoolOp(other, values))
            yield node, f"({text})", "and -> or" if isinstance(op, ast.And) else "or -> and"
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
            if not any(isinstance(side, ast.JoinedStr | ast.Constant) and not _number(side) for side in (left, right)):
                new = ast.BinOp(left, _ARITHMETIC[type(op)](), right)
                yield node, f"({ast.unparse(new)})", f"{_sign(op)} -> {_sign(new.op)}"
        case ast.Constant(value=bool(value)):
            yield node, str(not value), f"{value} -> {not value}"
        case ast.Constant(value=int(value)):
            new_value = {0: 1, 1: 0}.get(value, value + 1)
            yield node, str(new_value), f"{value} -> {new_value}"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Break() | ast.Continue() | ast.Raise() | ast.Delete():
            yield node, "pass", "statement dropped"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass", "statement dropped"
        case ast.Return(value=value) if value is not None and not (
            isinstance(value, ast.Constant) and value.value is None
        ):
            yield node, "return None", "returns None"


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _sign(op: ast.AST) -> str:
    """
    >>> _sign(ast.Lt()), _sign(ast.Add())
    ('<', '+')
    """
    zero = ast.Constant(0)
    whole = ast.Compare(zero, [op], [zero]) if isinstance(op, ast.cmpop) else ast.BinOp(zero, op, zero)  # type: ignore[arg-type]
    return ast.unparse(whole)[1:-1].strip()
