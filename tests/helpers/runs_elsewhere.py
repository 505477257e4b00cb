"""Runs that are not dpjax's, at the top of a module, where a pool of processes finds them."""


def model_and_count(seed: int, hyperparameters: dict) -> tuple[dict, int]:
    """A model that names its seed; the count follows the rate."""
    return {"rate": hyperparameters["rate"], "seed": seed}, round(100 * hyperparameters["rate"])
