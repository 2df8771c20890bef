"""One measurement in a process of its own: ``python -m matfree_hier.bench.child MODULE:FUNCTION`` (internal).

Arguments come as one JSON object on standard input, the record goes as one JSON object to standard output;
on several MPI ranks those of rank 0.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from matfree_hier.bench.measure import resolve, to_json
from matfree_hier.launcher import world


def run() -> int:
    """Call the function named on the command line; return its exit status, 0, 1 or 130."""
    comm = world()
    speaks = comm is None or comm.Get_rank() == 0
    arguments: dict[str, Any] = json.load(sys.stdin) if speaks else {}
    if comm is not None:
        arguments = comm.bcast(arguments)
    # Whatever the measured code prints belongs on standard error: standard output carries the record alone.
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    status = 0
    try:
        answer = {"result": resolve(sys.argv[1])(**arguments)}
    except KeyboardInterrupt:
        return 130
    except (ValueError, TypeError, MemoryError, OSError, RuntimeError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
        status = 1
    with answer_to:
        if speaks:
            answer_to.write(to_json(answer))
    return status


if __name__ == "__main__":
    sys.exit(run())
