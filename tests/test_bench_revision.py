from __future__ import annotations

import importlib
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest

import matfree_hier
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
        for cached in (revision._tree, revision._definitions, revision._modules, revision._renamed):
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


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("from matfree_hier.bench.recover import rate as speed", "speed(point)"),
        ("from matfree_hier.bench import recover as other", "other.rate(point)"),
        ("import matfree_hier.bench.recover", "matfree_hier.bench.recover.rate(point)"),
        ("import matfree_hier.bench.recover as other", "other.rate(point)"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_definitions_are_found_however_they_are_imported(digest_of, line, call, inside):
    code = CODE.replace("helper(point)  # at once", f"helper({call})")
    place = "    return helper" if inside else "SIZE = 3"
    code = code.replace(place, f"{'    ' if inside else ''}{line}\n{place}")
    digest_of(code)
    used = revision.definitions_used(sys.modules["made_up"].compute)
    assert {"made_up.helper", "matfree_hier.bench.recover.rate"} <= used.keys()


@pytest.mark.parametrize("line", ["import matfree_hier.bench", "from matfree_hier import bench"])
def test_an_import_of_the_whole_bench_is_refused(digest_of, line):
    with pytest.raises(ValueError, match="`made_up` must import modules of"):
        digest_of(CODE.replace("SIZE = 3", f"{line}\n\nSIZE = 3"))


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Return the folder of a copy of the package, and the digest as that of the copy."""
    whole = Path(matfree_hier.__file__).parent
    copy = tmp_path / "matfree_hier"
    shutil.copytree(whole, copy, ignore=shutil.ignore_patterns("__pycache__", "results"))
    expected = revision.package_digest()
    monkeypatch.setattr(matfree_hier, "__file__", str(copy / "__init__.py"))

    def digest():
        revision.package_digest.cache_clear()
        return revision.package_digest()

    assert digest() == expected
    yield copy, digest
    revision.package_digest.cache_clear()


def append(path, text="\nMORE = 1\n"):
    path.write_text((path.read_text() if path.exists() else "") + text)


@pytest.mark.parametrize("name", ["packing.py", "theory/__init__.py", "kernels/plan.py", "new.py"])
def test_the_digest_of_the_package_is_short_and_changes_with_each_of_its_modules(copied, name):
    folder, digest = copied
    before = digest()
    assert len(before) == revision.LENGTH
    append(folder / name)
    assert digest() != before


def test_the_digest_of_the_package_does_not_change_with_the_bench_or_with_data(copied):
    folder, digest = copied
    before = digest()
    for name in ("bench/grid.py", "bench/new.py", "notes.txt"):
        append(folder / name)
    assert digest() == before
