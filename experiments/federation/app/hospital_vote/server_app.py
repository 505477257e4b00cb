"""Runs at the server: holds the vote and writes release and curator folders."""

from dpjax import federated

app = federated.make_server_app(
    on_outcome=lambda outcome, config: federated.save_outcome(outcome, str(config["out-dir"]))
)
