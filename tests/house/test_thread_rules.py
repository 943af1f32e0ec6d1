"""Coroutines of the server call nothing that is marked as blocking, except in an executor; shared classes are
marked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SERVER = Path(__file__).resolve().parents[2] / "src" / "forebay" / "server"
MARKERS = {"loop_only", "blocking", "any_thread"}
TREES = {path: ast.parse(path.read_text()) for path in sorted(SERVER.rglob("*.py"))}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def markers(node: Function | ast.ClassDef) -> set[str]:
    """The markers of a definition."""
    return {each.id for each in node.decorator_list if isinstance(each, ast.Name)} & MARKERS


def methods() -> Iterator[tuple[str, str]]:
    """The name and the rule of each method and function of the server; "" for one without a marker."""
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                of_class = next(iter(markers(node)), "")
                for each in node.body:
                    if isinstance(each, Function):
                        own = next(iter(markers(each)), "")
                        yield each.name, own or ("" if each.name.startswith("_") else of_class)
            elif isinstance(node, ast.Module):
                yield from (
                    (each.name, next(iter(markers(each)), "")) for each in node.body if isinstance(each, Function)
                )


def blocking_names() -> set[str]:
    """Names that only blocking functions have. Others are ambiguous in a program that knows no types."""
    rules: dict[str, set[str]] = {}
    for name, rule in methods():
        rules.setdefault(name, set()).add(rule)
    return {name for name, found in rules.items() if found == {"blocking"}}


def called(body: ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    """The calls that a coroutine makes itself. Functions and lambdas inside of it may run in an executor."""
    waiting: list[ast.AST] = list(body.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.Lambda):
            continue
        if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
            waiting.extend(ast.iter_child_nodes(node.value))  # what is awaited is a coroutine
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting.extend(ast.iter_child_nodes(node))


def test_coroutines_call_nothing_that_blocks() -> None:
    names = blocking_names()
    assert len(names) >= 15
    wrong = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.AsyncFunctionDef):
                for call in called(node):
                    if isinstance(call.func, ast.Attribute) and call.func.attr in names:
                        wrong.append(f"{path.relative_to(SERVER)}:{call.lineno}: {node.name} calls {call.func.attr}")
    assert wrong == [], "call blocking code by `context.in_io` or `context.in_coordinator`"


def test_each_regulator_is_marked() -> None:
    """Every public class of flow control that is no value, error or protocol says in which thread it may be used."""
    unmarked = []
    for path, tree in TREES.items():
        if path.parent.name == "flow":
            for node in tree.body:
                bases = {ast.unparse(base).partition("[")[0] for base in getattr(node, "bases", ())}
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and "Protocol" not in bases:
                    own = markers(node) | {m for each in node.body if isinstance(each, Function) for m in markers(each)}
                    if not own:
                        unmarked.append(f"{path.name}: {node.name}")
    assert unmarked == []


def test_no_definition_has_two_markers() -> None:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, Function | ast.ClassDef):
                assert len(markers(node)) <= 1, f"{path.name}: {node.name}"
