"""Data sets: published ones by name, and the user's own, with their public sizes.

    dataset = data.load("mnist")
    parts = dataset.parts(validation_fraction=0.1, key=b"chosen without looking at the data")

Preprocessing uses public constants, documented vocabularies and ranges only: no mean, deviation,
norm or list of categories is ever computed from the records. `third_party_notes/data.md` gives
every set's address, checksums, terms and encoding.
"""

from dpjax.data import partitioners
from dpjax.data.dataset import Dataset, Parts, Split, split_train_validation
from dpjax.data.loading import DEFAULT_DATA_DIR, NAMES, load
from dpjax.data.published_files import DataCorruptedError, DataNotFoundError
from dpjax.data.user_arrays import from_arrays, load_arrays

__all__ = [
    "DEFAULT_DATA_DIR",
    "NAMES",
    "DataCorruptedError",
    "DataNotFoundError",
    "Dataset",
    "Parts",
    "Split",
    "from_arrays",
    "load_arrays",
    "load",
    "partitioners",
    "split_train_validation",
]
