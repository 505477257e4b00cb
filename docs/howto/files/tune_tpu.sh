#!/bin/bash
# On every host of a TPU slice, at the same time; the hosts share the disk that --out_dir is on.
set -euo pipefail
umask 077
cd "$HOME/dpjax"
. .venv/bin/activate
exec python -m experiments.tune --distributed --resume \
  --dataset="$HOME/shared/mine.npz" --public_size=30000 --classes=2 --epsilon=2 \
  --clipping=automatic --score_on_training --out_dir="$HOME/shared/curator/slice"
