"""The example's records: three hospitals of different sizes, each a folder of .npz files.

Real measurements of breast tumours (Wisconsin Diagnostic Breast Cancer, as scikit-learn ships it:
569 patients, 30 features, malignant or benign), dealt out so that hospitals differ in size and in
how many of their patients are ill. Features are divided by round numbers fixed beforehand, not by
statistics of the records.
"""

from __future__ import annotations

import os

import numpy as np
from sklearn.datasets import load_breast_cancer

NAMES = ("county_hospital", "university_clinic", "rural_practice")
CLASSES = 2
_MALIGNANT_SHARES = (0.35, 0.5, 0.15)
_BENIGN_SHARES = (0.5, 0.3, 0.2)
_FILES = 2
# Scales of the ten measurements: of their means, their errors and their worst values.
_SCALES = np.array(
    [30, 40, 200, 2600, 1, 1, 1, 1, 1, 1]
    + [3, 5, 22, 550, 1, 1, 1, 1, 1, 1]
    + [40, 50, 260, 4300, 1, 1, 1, 1, 1, 1],
    dtype=np.float32,
)


def write_hospitals(folder: str, seed: int = 0) -> list[str]:
    """Makes the three folders, which must not be there yet; returns their paths."""
    features, labels = load_breast_cancer(return_X_y=True)
    generator = np.random.default_rng(seed)
    held: list[list[np.ndarray]] = [[] for _ in NAMES]
    for label, shares in enumerate((_MALIGNANT_SHARES, _BENIGN_SHARES)):
        members = generator.permutation(np.flatnonzero(labels == label))
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for kept, part in zip(held, np.split(members, cuts)):
            kept.append(part)
    paths = []
    for name, parts in zip(NAMES, held):
        path = os.path.join(folder, name)
        os.makedirs(path, mode=0o700)
        records = generator.permutation(np.concatenate(parts))
        for number, part in enumerate(np.array_split(records, _FILES)):
            np.savez(
                os.path.join(path, f"records_{number}.npz"),
                inputs=(features[part] / _SCALES).astype(np.float32),
                labels=labels[part].astype(np.int64),
            )
        paths.append(path)
    return paths
