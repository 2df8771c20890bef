"""Numbers with their nouns, for what people read."""

from __future__ import annotations


def counted(count: float, noun: str, spec: str = ",") -> str:
    """Return a number and its noun, in the plural unless the number is written as 1.

    Parameters
    ----------
    count : float
    noun : str
        Regular, in the singular.
    spec : str
        Format of the number.

    Examples
    --------
    >>> counted(1, "seed"), counted(7260, "feature"), counted(6.5, "pass", ".3g")
    ('1 seed', '7,260 features', '6.5 passes')
    """
    number = format(count, spec)
    if number == "1":
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"
