"""The default, tuning and other libraries on judgement tables; see `figures/leaderboard/board`.

python -m experiments.leaderboard --quick
"""

from experiments.figures.leaderboard.board import FIGURE

if __name__ == "__main__":
    FIGURE.run()
