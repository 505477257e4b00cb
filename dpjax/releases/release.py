"""What may leave the curator's hands: the winner, its hyperparameters, and the claim about them.

Nothing here may depend on the number of candidates, on the losers, or on when the run took place:
not a file's content, size, name, count or time stamp.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import flax.serialization
import jax
import numpy as np

from dpjax import checks
from dpjax.certificate import CERTIFICATE
from dpjax.files import naming
from dpjax.releases import certificates

PyTree = Any

MODEL_FILE = "model.msgpack"
HYPERPARAMETERS_FILE = "hyperparameters.json"
GUARANTEE_FILE = "guarantee.json"
SCHEMA_FILE = "schema.json"

SEAL, THIS_STATEMENT = "sha256", "this_statement_without_this_line"
"""Where `guarantee.json` keeps the hashes of the release's files, and its own among them."""

CONTEXT = "context"
"""Where it says who claims it, on which data and what for, if that was given."""

LONGEST_TEXT = 500
"""Characters of each of these."""


@dataclasses.dataclass(frozen=True)
class Release:
    """The output of a private procedure.

    Attributes:
      params: the released model's parameters, a pytree of arrays; None where none is released.
      hyperparameters: the released candidate's, as its run used them (lot size and steps whole);
        values None if the data-independent default is released.
      statement: the claim, for JSON. The file holds `sha256` beside it, see `sealed`.
    """

    params: PyTree
    hyperparameters: Mapping[str, float | None]
    statement: Mapping[str, Any]

    def __repr__(self) -> str:
        """Shows the hyperparameters and the cost; not the weights."""
        costs = {
            name: self.statement[name] for name in ("epsilon", "delta") if name in self.statement
        }
        return f"Release(hyperparameters={dict(self.hyperparameters)}, {costs})"

    def with_context(
        self,
        *,
        claimed_by: str | None = None,
        data_description: str | None = None,
        purpose: str | None = None,
        decision_weights: Sequence[float] = (),
    ) -> Release:
        """Returns the release with more text, which its hashes bind to the claim; None: none.

        The text is published, so it must not depend on the records: no count, no date and no name
        that is not public.

        >>> release = Release({}, {}, {"private": False}).with_context(purpose="triage")
        >>> release.statement["context"]
        {'purpose': 'triage'}

        Args:
          claimed_by: the person or body that answers for the claim.
          data_description: which data, in public words.
          purpose: what the model is for.
          decision_weights: public weights of the classes, whose logarithms are added to the model's
            scores before the largest is predicted; `tune` names those of its task.
        """
        given = dict(claimed_by=claimed_by, data_description=data_description, purpose=purpose)
        said: dict[str, Any] = {name: words for name, words in given.items() if words is not None}
        for name, words in said.items():
            checks.text(name, words)
            if not words.strip() or not words.isprintable() or len(words) > LONGEST_TEXT:
                line = f" must be one line of 1 to {LONGEST_TEXT} characters, such as "
                raise checks.Refused((name,), line, "'City Hospital, data office'")
        if len(decision_weights):
            said["decision_weights"] = [float(one) for one in decision_weights]
        if not said:
            return self
        said = dict(self.statement.get(CONTEXT, {})) | said
        return dataclasses.replace(self, statement=dict(self.statement) | {CONTEXT: said})

    def model_files(self) -> dict[str, bytes]:
        """Returns the files that hold the model, by name; a function of the parameters alone."""
        if self.params is None:
            return {}
        state = jax.tree.map(np.asarray, flax.serialization.to_state_dict(self.params))
        return {MODEL_FILE: flax.serialization.msgpack_serialize(state)}

    def rehearse(self) -> int:
        """Refuses what could not be saved, and returns how many bytes the files would take.

        `params` may be shapes: nothing of their size is allocated.
        """
        leaves = jax.tree.leaves(self.params)
        small = jax.tree.map(lambda leaf: np.zeros(1, leaf.dtype), self.params)
        try:
            files = sealed(dataclasses.replace(self, params=small).model_files(), self.statement)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"a release of this task could not be written ({checks.shown(error)}): pass "
                "parameters as nested dicts, lists or Flax's containers of arrays"
            ) from error
        return sum(map(len, files.values())) + sum(
            leaf.size * np.dtype(leaf.dtype).itemsize for leaf in leaves
        )

    def save(
        self,
        folder: str | os.PathLike,
        *,
        certificate: bool = True,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the release into a new folder, whole or not at all.

        `model.msgpack` (parameters; plain Flax reads it with `flax.serialization.msgpack_restore`),
        `hyperparameters.json`, `guarantee.json`, and `certificate.json`, which
        `python -m dpjax.certificate FOLDER` proves the stated epsilon with, where that program can
        (docs/certificates.md). Finding the proof takes 0.1 to 30 s.

        Formal guarantees:
          The folder is a function of the arguments alone; all time stamps are 0.

        Args:
          folder: must not exist yet.
          certificate: whether to look for a proof.
          schema: public; what the file of a table's schema holds. It becomes `schema.json`, for
            those who encode records for the model.
        """
        checks.flag("certificate", certificate)
        if schema is not None:
            checks.mapping("schema", schema, "as a schema's file holds it")
        folder = os.path.abspath(checks.path("folder", folder))
        if os.path.lexists(folder):
            raise ValueError(f"{folder} exists already: pass a folder that does not exist yet")
        above = os.path.dirname(folder)
        os.makedirs(above, exist_ok=True)
        contents = self.model_files() | {
            HYPERPARAMETERS_FILE: json_bytes(dict(self.hyperparameters))
        }
        if schema is not None:
            # Its order is that of the model's inputs.
            contents[SCHEMA_FILE] = json_bytes(schema, sort=False)
        proof = certificates.found(json_bytes(self.statement)) if certificate else None
        if proof is not None:
            contents[CERTIFICATE] = json_bytes(proof)
        files = sealed(contents, self.statement)
        # A temporary name of its own: another process may write a release beside this one.
        partial = tempfile.mkdtemp(prefix=f"{os.path.basename(folder)}.", dir=above)
        try:
            with naming(folder):
                _write(partial, files)
            os.rename(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _write(folder: str, files: Mapping[str, bytes]) -> None:
    """Writes files into an existing folder, readable by all; time stamps of 0 reveal no time."""
    for name, content in files.items():
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, 0o644)
        os.utime(path, (0, 0))
    os.chmod(folder, 0o755)
    os.utime(folder, (0, 0))


def sealed(files: Mapping[str, bytes], statement: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the files of a release with its statement, bound to each other by their hashes.

    `guarantee.json` names the SHA-256 of every other file, and its own without that one line. This
    shows accidental changes; it is no signature: anyone who can write all the files can write the
    hashes too. The result, name -> content, depends on the arguments alone.
    """
    of_files = {name: sha256(content) for name, content in files.items()}
    claim = dict(statement) | {SEAL: of_files}
    claim[SEAL] = of_files | {THIS_STATEMENT: sha256(json_bytes(claim))}
    return dict(files) | {GUARANTEE_FILE: json_bytes(claim)}


def sha256(content: bytes) -> str:
    """Returns the hash of a file's content, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def json_bytes(content: Any, sort: bool = True) -> bytes:
    """Returns strict JSON (no NaN, no infinity), indented, keys sorted, with a final newline."""
    return (json.dumps(content, indent=2, sort_keys=sort, allow_nan=False) + "\n").encode()
