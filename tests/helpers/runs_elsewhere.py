"""Runs that are not dpjax's, at the top of a module, where a pool of processes finds them."""

import os


def model_and_count(seed: int, hyperparameters: dict) -> tuple[dict, int]:
    """A model that names its seed; the count follows the rate."""
    return {"rate": hyperparameters["rate"], "seed": seed}, round(100 * hyperparameters["rate"])


def killed_at_the_third(seed: int, hyperparameters: dict) -> tuple[dict, int]:
    """`model_and_count`; notes its seed in the file that RUNS_SO_FAR names, its third call dies."""
    with open(os.environ["RUNS_SO_FAR"], "a+") as file:
        file.write(f"{seed}\n")
        file.seek(0)
        if len(file.readlines()) == 3:
            file.flush()
            os._exit(9)
    return model_and_count(seed, hyperparameters)
