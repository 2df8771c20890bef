"""Numbers with their nouns, and checks in a sentence, for what people read."""

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


def check_sentence(what: str, value: float | None, side: str, bound: float, met: bool) -> str:
    """Return what was asked of a result and whether it keeps to it.

    Parameters
    ----------
    what : str
        Of what the value is.
    value : float or None
        None where it is not a number.
    side : str
        "at most" or "at least".
    bound : float
    met : bool

    Examples
    --------
    >>> check_sentence("largest distance", 0.0431, "at most", 0.1, True)
    'largest distance: 0.0431, at most 0.1: met'
    """
    shown = "nan" if value is None else f"{value:.4g}"
    return f"{what}: {shown}, {side} {bound:g}: {'met' if met else 'MISSED'}"
