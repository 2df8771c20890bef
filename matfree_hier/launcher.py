"""What a launcher of MPI processes (`mpiexec`, `srun`) started."""

from __future__ import annotations

import os
from typing import Any


def launched() -> int:
    """Return how many processes an MPI launcher started, as the environment says; 1 for none."""
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 1


def world() -> Any:
    """Return the communicator of the processes that a launcher started, None for a process by itself.

    Raises
    ------
    ImportError
        If mpi4py or its MPI is not installed.
    ValueError
        If MPI does not see the other processes.
    """
    if launched() == 1:
        return None
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        msg = f"{launched()} processes need MPI: pip install 'matfree-hier[mpi]' ({error})."
        raise ImportError(msg) from error
    if MPI.COMM_WORLD.Get_size() != launched():
        seen = MPI.COMM_WORLD.Get_size()
        msg = (
            f"{launched()} processes were started, and MPI sees {seen}: start them by the `mpiexec` of this"
            " MPI, or by `srun --mpi=pmi2`."
        )
        raise ValueError(msg)
    return MPI.COMM_WORLD
