"""The facade: every public name is there, none is loaded before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import matfree_hier

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", matfree_hier.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(matfree_hier, name) is not None
    assert name in dir(matfree_hier)


def test_what_type_checkers_see_is_what_is_exported() -> None:
    tree = ast.parse(Path(matfree_hier.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(matfree_hier.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'matfree_hier' has no attribute 'nothing'"):
        matfree_hier.nothing  # noqa: B018


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert matfree_hier.__version__ == project["version"]


def test_importing_the_package_or_the_kernels_loads_no_scikit_learn() -> None:
    code = (
        "import sys, matfree_hier, matfree_hier.kernels\n"
        "heavy = {'sklearn', 'scipy.stats', 'pandas', 'matplotlib', 'h5py'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)


def test_both_folders_are_links_in_a_checkout() -> None:
    """The mapping in pyproject alone fails when a command runs in the checkout after an install."""
    for name in ("kernels", "bench"):
        link = ROOT / "matfree_hier" / name
        assert link.is_symlink()
        assert link.resolve() == ROOT / name
