"""Classifiers of other libraries, each in a process and environment of its own.

`python others.py METHOD FILE.npz EPSILON DELTA SEED` writes `RIGHT` beside the file: which test
records (n,) are classified rightly. It imports nothing of this project, whose
versions of scikit-learn need not be theirs. `inputs` are those of our models, in [0, 1]; `columns`
the table's own, numbers as they are and categories by place, for methods that bin by themselves.
Types, bounds, norms and classes are public and given; everything else is at its default. DP-EBM
takes no missing numbers: they are the least value, as in our inputs, and a column of its own says
where they are, if any is (a look at the records that it is not charged for).
"""

import math
import pathlib
import sys
import warnings

import numpy as np

RIGHT = "right.npy"


def fitted(method: str, held, epsilon: float, delta: float, seed: int) -> np.ndarray:
    """Returns which test records (n,) a method at this total epsilon classifies rightly."""
    inputs, labels, classes = held["inputs"], held["labels"], int(held["classes"])
    test = held["test_inputs"]
    if method == "DP-EBM":
        from interpret.privacy import DPExplainableBoostingClassifier

        inputs, test, bounds = held["columns"], held["test_columns"], held["bounds"]
        missing = np.isnan(inputs).any(axis=0)  # bounds are NaN of a column of categories
        bounds = np.concatenate([bounds, np.full((missing.sum(), 2), np.nan)])
        nominal = np.isnan(bounds[:, 0])

        def typed(columns):
            filled = np.where(np.isnan(columns), held["bounds"][:, 0], columns)
            made = np.concatenate([filled, np.isnan(columns[:, missing])], axis=1).astype(object)
            made[:, nominal] = made[:, nominal].astype(int).astype(str)
            return made

        inputs, test = typed(inputs), typed(test)
        model = DPExplainableBoostingClassifier(
            feature_types=["nominal" if one else "continuous" for one in nominal],
            privacy_bounds={
                place: tuple(ends) for place, ends in enumerate(bounds) if not np.isnan(ends[0])
            },
            epsilon=epsilon,
            delta=delta,
            random_state=seed,
            n_jobs=1,
        )
    elif method == "diffprivlib, logistic":
        from diffprivlib.models import LogisticRegression

        # A column of the table adds at most 1 to the square of a record's norm.
        norm = math.sqrt(held["bounds"].shape[0])
        model = LogisticRegression(epsilon=epsilon, data_norm=norm, random_state=seed)
    elif method == "diffprivlib, forest":
        from diffprivlib.models import RandomForestClassifier

        model = RandomForestClassifier(
            epsilon=epsilon, bounds=(0.0, 1.0), classes=list(range(classes)), random_state=seed
        )
    else:
        raise ValueError(f"unknown method {method!r}")
    model.fit(inputs, labels)
    return model.predict(test) == held["test_labels"]


if __name__ == "__main__":
    name, path, epsilon, delta, seed = sys.argv[1:]
    warnings.simplefilter("ignore")
    with np.load(path) as held:
        right = fitted(name, held, float(epsilon), float(delta), int(seed))
    np.save(pathlib.Path(path).with_name(RIGHT), right)
