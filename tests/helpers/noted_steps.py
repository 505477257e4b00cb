"""Notes what a tuner asks for and how it is answered, and stops it where a test wants to."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dpjax.tuning import private_runs, steps
from dpjax.tuning.steps import Material


class Stopped(BaseException):
    """Stands for the end of the process."""


@dataclasses.dataclass
class Answered:
    """A request, how it was answered, and the answers."""

    request: steps.Request
    how: steps.How
    answers: Any

    @property
    def procedure(self) -> private_runs.RunsPlan:
        """The private runs that were asked for."""
        if isinstance(self.request, steps.Select):
            return self.request.plan
        chosen = {name: np.array([value]) for name, value in self.request.hyperparameters.items()}
        return private_runs.final_run(self.request.plan, self.request.setting, chosen)

    @property
    def material(self) -> Material:
        """What they were trained on."""
        return self.request.material()


class _Noted(steps.Request):
    def __init__(self, request: Any, material: Any, seen: list[Answered], stops: Any):
        self.name, self.trains = request.name, request.trains
        self._request, self._material, self._seen = request, material, seen
        self._stop, self._stop_after = stops

    def alike(self) -> Any:
        return self._request.alike()

    def answer(self, asked: Any, how: steps.How) -> Any:
        if self.name == self._stop:
            raise Stopped
        arrays = self._request.answer([one._request for one in asked], how)
        answers = None if arrays is None else self._request.read(arrays, self._material)
        self._seen.append(Answered(self._request, how, answers))
        if self.name == self._stop_after:
            raise Stopped
        return arrays

    def read(self, arrays: Any, material: Any) -> Any:
        return self._request.read(arrays, material)


def noting(
    cls: type, seen: list[Answered], stop: str | None = None, stop_after: str | None = None
) -> type:
    """A class of tuners like `cls` that adds to `seen`, stopped before or after a request."""

    class Noting(cls):
        def steps(self, plan, material):
            own, answer = super().steps(plan, material), None
            while True:
                try:
                    request = own.send(answer)
                except StopIteration as end:
                    return end.value
                drawn = isinstance(request, steps.Draw)
                if not drawn:
                    request = _Noted(request, material, seen, (stop, stop_after))
                answer = yield request

    Noting.__name__ = cls.__name__  # A folder is bound to it.
    return Noting
