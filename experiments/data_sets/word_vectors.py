"""Word vectors of chars2vec, a small pretrained net whose package ships its weights (Apache 2.0).

Two LSTM layers of 50 cells read a word's characters; the last state is the word's vector. The
package needs Keras to run; this file reads its weights with h5py alone. Vladimir Chikin, Intuition
Engineering, 2019: `pip install --no-deps chars2vec`, then `pip install h5py`.
"""

from __future__ import annotations

import importlib.util
import pathlib
import pickle
from collections.abc import Sequence

import numpy as np

from dpjax.data.published_files import DataNotFoundError

SIZE = 50
_MOST_CHARACTERS = 24


def of_words(words: Sequence[str]) -> np.ndarray:
    """Returns the vectors (n, `SIZE`) float32 of words; equal words have equal vectors."""
    distinct = sorted({word.lower()[:_MOST_CHARACTERS] for word in words})
    places = {word: place for place, word in enumerate(distinct)}
    vectors = _vectors(distinct)
    return vectors[[places[word.lower()[:_MOST_CHARACTERS]] for word in words]]


def _vectors(words: Sequence[str]) -> np.ndarray:
    import h5py

    folder = _folder()
    # A list of the size and the characters' places: numbers and text alone, of a pinned package.
    with open(folder / "model.pkl", "rb") as file:
        _, characters = pickle.load(file)
    with h5py.File(folder / "weights.h5") as file:
        layers = [
            tuple(
                np.asarray(file[f"{name}/{name}/{part}:0"])
                for part in ("kernel", "recurrent_kernel", "bias")
            )
            for name in ("lstm_1", "lstm_2")
        ]
    # Words are padded in front, as the package does, and unknown characters are zeros.
    longest = max(map(len, words))
    states = np.zeros((len(words), longest, len(characters)), np.float32)
    for row, word in enumerate(words):
        for place, letter in enumerate(word, longest - len(word)):
            if letter in characters:
                states[row, place, characters[letter]] = 1.0
    for layer in layers:
        states = lstm(states, *layer)
    return states[:, -1]


def lstm(inputs: np.ndarray, kernel: np.ndarray, back: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Returns all states (n, time, cells) of Keras' layer; its gates are in, forget, cell, out."""
    rows, times, _ = inputs.shape
    cells = len(back)
    state, cell = np.zeros((2, rows, cells), np.float32)
    states = np.empty((rows, times, cells), np.float32)
    for time in range(times):
        gates = np.split(inputs[:, time] @ kernel + state @ back + bias, 4, axis=1)
        # The package's Keras took the piecewise linear sigmoid for gates.
        entering, kept, leaving = (np.clip(0.2 * gates[i] + 0.5, 0, 1) for i in (0, 1, 3))
        cell = kept * cell + entering * np.tanh(gates[2])
        state = leaving * np.tanh(cell)
        states[:, time] = state
    return states


def _folder() -> pathlib.Path:
    found = importlib.util.find_spec("chars2vec")
    if found is None or found.origin is None or importlib.util.find_spec("h5py") is None:
        raise DataNotFoundError(
            "pretrained word vectors come with chars2vec, which is not installed with h5py: "
            "pip install --no-deps chars2vec==0.1.7, then pip install h5py"
        )
    return pathlib.Path(found.origin).parent / "trained_models" / f"eng_{SIZE}"
