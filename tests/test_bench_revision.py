from __future__ import annotations

import importlib
import sys
from functools import partial

import pytest

from matfree_hier.bench import limits, links, mpi, recovery, revision

CODE = '''"""About it."""

SIZE = 3
UNUSED = 4


def compute(point, seed):
    """Return something."""
    return helper(point)  # at once


def helper(point):
    return SIZE * point


def summarise(entries):
    return UNUSED
'''


@pytest.fixture
def digest_of(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def digest(code):
        for cached in (revision._tree, revision._definitions, revision._modules):
            cached.cache_clear()
        sys.modules.pop("made_up", None)
        (tmp_path / "made_up.py").write_text(code)
        importlib.invalidate_caches()
        return revision.code_digest(importlib.import_module("made_up").compute)

    yield digest
    sys.modules.pop("made_up", None)


@pytest.mark.parametrize(
    ("old", "new"),
    [("SIZE = 3", "SIZE = 5"), ("SIZE * point", "SIZE + point"), ("helper(point)", "helper(seed)")],
)
def test_a_change_of_what_a_function_uses_changes_its_digest(digest_of, old, new):
    assert digest_of(CODE) != digest_of(CODE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("UNUSED = 4", "UNUSED = 5"),
        ("return UNUSED", "return entries"),
        ("Return something", "Return a number"),
        ("  # at once", ""),
    ],
)
def test_what_is_not_used_and_words_about_code_leave_the_digest(digest_of, old, new):
    assert digest_of(CODE) == digest_of(CODE.replace(old, new))


def test_definitions_are_found_through_modules_names_in_text_and_partial_functions():
    assert revision.code_digest(links.GRID.compute) == revision.code_digest(recovery.compute)
    used = revision.definitions_used(partial(limits.compute, out=None))
    bench = "matfree_hier.bench"
    assert {
        f"{bench}.limits.recover",
        f"{bench}.recover.rate",
        f"{bench}.measure.run_isolated",
    } <= used.keys()
    assert f"{bench}.limits.summarise" not in used
    assert {f"{bench}.mpi.products", f"{bench}.mpi.divided"} <= revision.definitions_used(mpi.compute).keys()


def test_the_digest_of_the_package_is_short_and_does_not_change():
    digest = revision.package_digest()
    assert len(digest) == revision.LENGTH
    revision.package_digest.cache_clear()
    assert revision.package_digest() == digest
