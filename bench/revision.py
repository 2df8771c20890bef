"""Which code made a result: a digest of a function with all it uses of the bench, and one of the package."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matfree_hier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BENCH = "matfree_hier.bench"
LENGTH = 12  # of the digests, in hexadecimal digits


def code_digest(function: Callable[..., Any]) -> str:
    """Return a digest of a function and of the definitions of the bench that it uses, however far away.

    Comments, docstrings and layout do not count; nor does the package outside the bench, for which there is
    `package_digest`. Code is compared as `ast.unparse` writes it, which is not the same text in every version
    of Python: another one may compute results anew.
    """
    used = definitions_used(function)
    return _digest(f"{name} {used[name]}" for name in sorted(used))


def definitions_used(function: Callable[..., Any]) -> dict[str, str]:
    """Return the code of all top-level definitions that decide what a function does, by ``module.name``.

    Names are looked up, also those within text such as ``"matfree_hier.bench.recover:rate"``, in the
    function's module and in the modules of the bench that this one names. A name that means something else
    there adds a definition too many, never one too few. A name that an import gives (``from
    matfree_hier.bench.recover import rate as speed``) stands for what it is called where it is defined.

    Raises
    ------
    ValueError
        If a module imports the bench as a whole or relatively: what it uses then cannot be told.
    """
    while isinstance(function, partial):
        function = function.func
    todo = [(function.__module__, function.__qualname__.partition(".")[0])]
    used: dict[str, str] = {}
    while todo:
        module, name = todo.pop()
        if f"{module}.{name}" in used:
            continue
        definitions = _definitions(module)[name]
        used[f"{module}.{name}"] = "\n".join(map(ast.unparse, definitions))
        words = set().union(*map(_words, definitions))
        for other in (module, *_modules(module)):
            todo += [(other, word) for word in words & _definitions(other).keys()]
        todo += [
            (other, original)
            for word, other, original in _renamed(module)
            if word in words and original in _definitions(other)
        ]
    return used


@cache
def package_digest() -> str:
    """Return a digest of the package but for the bench, which tells states of one version apart."""
    root = Path(str(matfree_hier.__file__)).parent
    files = [
        Path(folder) / name
        for folder, _, names in os.walk(root, followlinks=True)  # a checkout has links
        for name in names
        if name.endswith(".py")
    ]
    inside = sorted((path.relative_to(root).as_posix(), path) for path in files)
    return _digest(
        f"{name} {path.read_text(encoding='utf-8')}" for name, path in inside if not name.startswith("bench/")
    )


def _digest(parts: Iterator[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:LENGTH]


@cache
def _tree(module: str) -> ast.Module:
    """Return the syntax tree of a module, without docstrings."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        msg = f"`module` must have a source file, got {module}."
        raise ValueError(msg)
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return tree


@cache
def _definitions(module: str) -> dict[str, list[ast.stmt]]:
    """Return the top-level definitions of a module by name; a name may have several."""
    found: dict[str, list[ast.stmt]] = {}
    for node in _tree(module).body:
        targets: list[ast.expr] = []
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        names += [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        for name in names:
            found.setdefault(name, []).append(node)
    return found


@cache
def _modules(module: str) -> set[str]:
    """Return the modules of the bench that a module imports, anywhere, or names in text."""
    found = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            _refuse_whole(module, BENCH in names)
            found.update(names)
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            _refuse_whole(module, node.level > 0 or (f"{node.module}.bench" == BENCH and "bench" in names))
            found |= {f"{BENCH}.{name}" for name in names} if node.module == BENCH else {str(node.module)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(re.findall(rf"{re.escape(BENCH)}\.\w+", node.value))
    return {name for name in found if name.startswith(f"{BENCH}.") and importlib.util.find_spec(name)}


def _refuse_whole(module: str, whole: bool) -> None:
    if whole:
        msg = f"`{module}` must import modules of {BENCH} by their full names."
        raise ValueError(msg)


@cache
def _renamed(module: str) -> set[tuple[str, str, str]]:
    """Return what a module imports under a name of its own: that name, whose it is, and its name there."""
    return {
        (alias.asname, node.module, alias.name)
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.ImportFrom) and node.module in _modules(module)
        for alias in node.names
        if alias.asname is not None
    }


def _words(definition: ast.stmt) -> set[str]:
    """Return the names in a definition, and the words of its text."""
    found: set[str] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(re.findall(r"\w+", node.value))
    return found
