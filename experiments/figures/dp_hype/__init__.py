"""Figures of Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902.

Numbered as in the published version (v3) and in the authors' code; `figure_communication` is
figure 3 of the preprint. Figure 2 is a simulation without training; figures 3 to 13 run alike:

  python -m experiments.figures.dp_hype.figure_4 --data_dir=...              the paper's size, GPU
  python -m experiments.figures.dp_hype.figure_4 --data_dir=... --size=mid   committed, 4 CPU cores
  python -m experiments.figures.dp_hype.figure_4 --quick                     digits, seconds

What the sizes are is in `studies`; what each figure shows, what came out, and how long each size
takes, in docs/figures.md. What is trained is kept in --tables_dir, candidate by
candidate in pieces of --chunk_size, and shared by all figures: a stopped program goes on where it
was, and another epsilon, number of --runs or figure trains nothing again. --rates, --epsilons,
--datasets, --clients and --concentrations choose among what a figure shows; for example the
paper's own size of all that is Adult, in under an hour on a CPU:

  python -m experiments.figures.dp_hype.figure_8 --data_dir=... --datasets=adult
"""
