"""What a grid of ranks takes, by formula; the messages are held against real ones in test_divided."""

from __future__ import annotations

from math import comb
from pathlib import Path

from matfree_hier.divided import cost_table, costs

PAGE = Path(__file__).parent.parent / "docs" / "divided.md"
LARGE = {"k": 16, "block_size": 16, "max_basis": 96}


def test_a_larger_grid_divides_memory_and_work() -> None:
    alone = costs(10**6, 10**7, 180, rows=1, columns=1, **LARGE)
    many = costs(10**6, 10**7, 180, rows=4, columns=8, **LARGE)
    assert alone.product_received == alone.solver_received == alone.on_root == 0
    assert alone.vectors == 32 * many.vectors == 16 * 10**6 * 96
    assert alone.product_operations == 32 * many.product_operations == 4 * 10**13 * 16
    assert alone.samples == 4 * many.samples
    assert many.memory < alone.memory / 12


def test_rows_divide_messages_of_samples_and_columns_those_of_features() -> None:
    tall, wide = (costs(10**6, 10**7, 180, rows=r, columns=c, **LARGE) for r, c in ((16, 2), (2, 16)))
    assert tall.latents_received < wide.latents_received / 8
    assert tall.sums_received > 8 * wide.sums_received


def test_the_grid_that_the_page_recommends_receives_the_least() -> None:
    """R / C = 2 n s / (D (s + 8)) for s bytes a number: 2 to the 2.74 here, and powers of two stand near."""
    grids = [(2**i, 2 ** (10 - i)) for i in range(11)]
    received = [costs(10**6, 10**7, 180, rows=r, columns=c, **LARGE).product_received for r, c in grids]
    rows, columns = grids[received.index(min(received))]
    assert (rows, columns) in ((64, 16), (128, 8))


def test_the_page_shows_what_the_formulas_give() -> None:
    d = 1816
    table = cost_table(
        comb(d + 2, 3), 10 * comb(d + 2, 3), d,
        grids=[(1, 1), (1024, 1), (256, 4), (64, 16), (32, 32), (16, 64), (1, 1024), (128, 32)],
        **LARGE,
    )  # fmt: skip
    assert table in PAGE.read_text(encoding="utf-8"), f"\n{table}"
