"""The noisy sums of a run of plain SGD at rate 1, step by step."""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training import dp_sgd


def noisy_sums(made, key, given, rows, params, number):
    """What every step takes off the parameters, (steps, *params.shape), by one call a step.

    `given` are the hyperparameters, `number` is that of the records.
    """
    given = {name: jnp.float32(value) for name, value in given.items()}
    draw = dp_sgd._lots_of_run(made, key, number)

    def step(state, index):
        after = dp_sgd.advance(
            made, key, given, state, rows, draw=draw, expected_lot_size=made.expected_lot_size,
            steps=np.uint32(1), first=index,
        )  # fmt: skip
        return after, state.trained - after.trained

    begun = jax.tree.map(jnp.asarray, dp_sgd.begin(made, given, params))
    return jax.lax.scan(step, begun, jnp.arange(made.steps, dtype=jnp.uint32))[1]
