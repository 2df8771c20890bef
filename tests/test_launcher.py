"""How many processes a launcher started, as it says and as MPI sees it."""

import sys
from types import SimpleNamespace

import pytest
import ranks

from matfree_hier.launcher import launched, world

NAMES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


@pytest.fixture(autouse=True)
def _by_itself(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_a_process_by_itself_has_no_communicator():
    assert launched() == 1
    assert world() is None


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_processes_is_what_the_launcher_says(monkeypatch, name):
    monkeypatch.setenv(name, "4")
    assert launched() == 4


def test_a_size_that_is_no_number_says_nothing(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "many")
    assert launched() == 1


def test_several_processes_without_mpi_are_refused(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"4 processes need MPI: pip install 'matfree-hier\[mpi\]'"):
        world()


def test_an_mpi_that_does_not_see_the_others_is_refused(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    seen = SimpleNamespace(COMM_WORLD=SimpleNamespace(Get_size=lambda: 1))
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=seen))
    with pytest.raises(ValueError, match="4 processes were started, and MPI sees 1"):
        world()


def _seen(comm):
    return launched(), world() == comm


@pytest.mark.skipif(not ranks.available(), reason="mpiexec is not installed")
def test_the_processes_of_mpiexec_are_those_of_its_world():
    pytest.importorskip("mpi4py")
    assert ranks.run_ranks(3, _seen) == [(3, True)] * 3
