"""Claims of whole tunings beside what was seen of one record; see `figures/auditing/audit`.

python -m experiments.audit --quick
"""

from experiments.figures.auditing.audit import FIGURE

if __name__ == "__main__":
    FIGURE.run()
