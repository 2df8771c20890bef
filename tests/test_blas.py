"""BLAS at one thread."""

import pytest
from threadpoolctl import threadpool_info

from matfree_hier.blas import single_threaded_blas


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_blas_is_held_to_one_thread_until_the_last_user_leaves() -> None:
    before = blas_threads()
    assert before
    first, second = single_threaded_blas(), single_threaded_blas()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert set(blas_threads()) == {1}
    second.__exit__(None, None, None)
    assert blas_threads() == before
    with pytest.raises(KeyError), single_threaded_blas():
        raise KeyError
    assert blas_threads() == before
