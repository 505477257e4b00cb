"""Flower's SuperLink, closed to whoever is not named: a token for its control, signatures of apps.

Flower 1.41 serves control, nodes and run time from one port, and without its commercial part
whoever reaches that port may start an app of his own on the SuperLink and on every node. Both
remedies are Flower's own, but this SuperLink has no setting for them; this program does:

  * every control request must carry a token (Flower's account tokens; the `flwr` command reads
    them from its credentials file);
  * the signatures of an app are handed to the nodes, which check them if they were started with
    `--trusted-entities`; Flower hands on only those of its own hub.

  python -m experiments.federation.superlink TOKEN_FILE SIGNATURES_FILE <flower-superlink's flags>

The node's check is what counts: it holds against the SuperLink itself, too.
"""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import Sequence
from typing import Any

from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.supercore.auth.typing import AccountInfo
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli import flower_superlink
from flwr.superlink.servicer.control import control_handlers

from dpjax.federated.flower.internals import TESTED_VERSIONS

_ = TESTED_VERSIONS  # Imported for its refusal of other versions: names below are not public.


class TokenAuthentication(NoOpControlAuthnPlugin):
    """Flower's single account, for those who hold its token."""

    def __init__(self, token: str):
        super().__init__()
        if len(token) < 32:
            raise ValueError("the token is too short: pass 32 random characters or more")
        self._token = token.encode()

    def validate_tokens_in_metadata(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[bool, AccountInfo | None]:
        """Whether the request carries the token, and whose account it is."""
        given = dict(metadata).get(ACCESS_TOKEN_KEY, "")
        given = given.encode() if isinstance(given, str) else given
        if not hmac.compare_digest(given, self._token):
            return False, None
        return super().validate_tokens_in_metadata(metadata)

    def refresh_tokens(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[Sequence[tuple[str, str | bytes]] | None, AccountInfo | None]:
        """Refused: there is one token."""
        return [], None


def handing_on(signatures: dict[str, dict[str, str]]) -> Any:
    """Makes Flower's record of an app hold the signatures of that app, by its SHA-256."""
    make = control_handlers.Fab

    def signed(hash_str: str, content: bytes, verifications: dict[str, str]) -> Any:
        return make(hash_str, content, verifications or signatures.get(hash_str, {}))

    return signed


def main() -> None:
    """Starts the SuperLink."""
    if len(sys.argv) < 3:
        sys.exit("usage: superlink TOKEN_FILE SIGNATURES_FILE <flower-superlink's flags>")
    with open(sys.argv.pop(1), encoding="ascii") as file:
        authentication = TokenAuthentication(file.read())
    with open(sys.argv.pop(1), encoding="utf-8") as file:
        control_handlers.Fab = handing_on(json.load(file))
    # Where Flower's SuperLink looks them up by name.
    module = sys.modules[flower_superlink.__module__]
    if not hasattr(module, "load_control_authn_plugin"):
        sys.exit("this Flower loads its account plug-ins elsewhere: its control would stay open")
    module.load_control_authn_plugin = lambda: authentication
    flower_superlink()


if __name__ == "__main__":
    main()
