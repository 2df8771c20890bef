"""The run file: named runs in one HDF5 file, committed whole, and the checkpoint of big state beside it.

HDF5 has no journal, and its errors on a full disk can leave it unable to close a file. So it only ever sees
memory: images of the file are made and read there (`runs`), and the disk is written by `atomic`. `encoding`
says which values can be held; `configuration` what made a result, and what tells it from another.
"""

from matfree_hier.store.atomic import CommitError
from matfree_hier.store.checkpoint import Checkpoint
from matfree_hier.store.configuration import differences, provenance
from matfree_hier.store.memory import MemoryRun
from matfree_hier.store.runs import RunFile

__all__ = ["Checkpoint", "CommitError", "MemoryRun", "RunFile", "differences", "provenance"]
