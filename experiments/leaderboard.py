"""Every tuner and the untuned rule at equal total epsilon; see `figures/leaderboard/leaderboard`.

python -m experiments.leaderboard --quick
"""

from experiments.figures.leaderboard.leaderboard import FIGURE

if __name__ == "__main__":
    FIGURE.run()
