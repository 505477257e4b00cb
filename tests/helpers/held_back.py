"""What is held back of a clip norm for the rounding of sums, by the formula, in plain arithmetic.

Nothing of the library is called: `clipped_grad` must come to the same number.
"""

UNIT, WIDE = 2.0**-24, 2.0**-53
ALLOWANCE = 2.0**-18  # for norms and the scaled gradient


def rounding(terms, unit=UNIT):
    """A sum of so many terms is off by this share of their absolute values, in any order."""
    return terms * unit / (1 - terms * unit)


def block_rows(size, terms=1, cancels=False, moved=1):
    """Rows of a block: the most, a power of two, whose rounding stays in the budget."""
    budget, rows = 2**12 if cancels else 2**15, 1
    while (2 * moved * (2 * rows) - 1) * (2 * rows) * terms <= budget:
        rows *= 2
    return min(rows, size)


def influence(size, in_sum=None, terms=1, cancels=False, moved=None, table=False):
    """What rounding adds to a row's own contribution, in norms of what a row adds.

    `size` rows of a batch, `in_sum` of all that are added up as pairs; None for one batch whose
    rounded sum is used as it is.
    """
    alone, in_sum = in_sum is None, in_sum or size
    if moved is None:
        moved = 2 if in_sum > size else 1
    block = size if table else block_rows(size, terms, cancels, moved)
    own = (2 * moved * block - 1) * rounding(block * terms + 4, WIDE if table else UNIT)
    additions = 5 * -(-in_sum // block) + 4
    lost = additions * 2.0**-46 + 2.0**-48 + (UNIT if alone else 0)
    return own + 2 * in_sum * lost * (1 + own)


def share(*given, cancels=False, **more):
    """What is held back: eight times as much where what a row adds may cancel."""
    rounded = influence(*given, cancels=cancels, **more)
    return max(2.0**-14, 8 * rounded) if cancels else rounded


def longest(*given, **more):
    """The norm of a clipped row's contribution, in clip norms."""
    return (1 - ALLOWANCE) / (1 + share(*given, **more))
