"""Data sets: published ones by name, and the user's own, with their public sizes.

    dataset = data.load("mnist")
    parts = dataset.parts(validation_fraction=0.1, key=b"chosen without looking at the data")

Preprocessing uses public constants, documented vocabularies and ranges only: no mean, deviation,
norm or list of categories is ever computed from the records. `third_party_notes/data.md` gives
every set's address, checksums, terms and encoding.

A table of your own, a CSV file or a DataFrame, is encoded by a public schema file (`from_table`).
To add another published data set, write one file: after
`data.register(data.Source(name="mine", ...))`, `data.load("mine")` finds its files, recognises them
by their checksums, and reads them.
"""

from dpjax.data.dataset import Dataset, Parts, Split, split_train_validation
from dpjax.data.loading import DEFAULT_DATA_DIR, NAMES, load
from dpjax.data.published_files import DataCorruptedError, DataNotFoundError, PublishedFile
from dpjax.data.source import Source, register
from dpjax.data.tables import (
    TableSchema,
    check_schema,
    from_table,
    load_table,
    read_schema,
    write_schema,
)
from dpjax.data.user_arrays import from_arrays, load_arrays

__all__ = [
    "Dataset",
    "Parts",
    "Split",
    "TableSchema",
    "from_arrays",
    "from_table",
    "load",
    "read_schema",
]
