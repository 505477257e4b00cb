"""Texts as numbers: the words of each, hashed into a public number of slots.

Nothing is learned from the texts, not even a list of words, so a text is encoded the same whatever
the others hold. The hash is fixed: whoever has a release encodes new texts alike.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from dpjax import checks

LARGEST = 1 << 16
"""The largest number of slots; a slot takes 4 bytes per record."""

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def words(text: str | None) -> list[str]:
    """Returns the words of a text, in lower case and in Unicode's form NFKC; [] for None."""
    return _WORD.findall(unicodedata.normalize("NFKC", text or "").casefold())


def checked_size(name: str, value: object) -> int:
    """Checks and returns a public number of slots."""
    wanted = f"a number of slots from 2 to {LARGEST}, such as 1024"
    if not isinstance(value, int) or isinstance(value, bool) or not 2 <= value <= LARGEST:
        raise checks.refused(name, value, wanted)
    return value


def hashed_words(texts: Sequence[str | None], slots: int) -> np.ndarray:
    """Returns (n, slots) float32: 1 for every slot that a word of the text is hashed into, else 0.

    Example:
      >>> from dpjax.data import text
      >>> encoded = text.hashed_words(["A cat, a dog", None], 8)
      >>> encoded.max(axis=1).tolist()
      [1.0, 0.0]

    Repetitions do not count. So a text's norm is at most the square root of its number of different
    words, and of `slots`.
    """
    found = np.zeros((len(texts), slots), np.float32)
    place: dict[str, int] = {}
    for row, text in zip(found, texts):
        for word in set(words(text)):
            if word not in place:
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                place[word] = int.from_bytes(digest, "little") % slots
            row[place[word]] = 1.0
    return found
