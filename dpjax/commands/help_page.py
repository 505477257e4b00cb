"""What a program's --help shows: the flags that the guides use, in groups, with defaults."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable

from absl import flags

GROUPS = {
    "What is tuned, and how": """
        dataset schema test_table public_size classes target_range size_bound user_column
        most_records image_size channels test_folder train_split test_split
        data_dir cache_dir method repetitions mean cap candidates partitions mechanism threshold
        halting_probability score_on_training validation_fraction space
        domain proposals public_proxy proxy_size clients folders votes train_rounds
        concentration""",
    "Base run (what one training costs)": """
        sampling_probability steps_per_epoch dataset_size noise_multiplier rho pure_epsilon rdp_csv
        neighbouring_relation retrain probability final_on""",
    "Privacy": """
        epsilon delta total_epsilon total_delta sampling validation_is_public score_noise clipping
        clip_groups clip_stability clip_norm missing_fraction seed budget paper_protocol""",
    "Model and training": """
        model widths loss error_scale class_weights class_priors score optimizer schedule
        warmup_share lot_size steps epochs bands stage_shares stage_noise stage_clip_norm
        stage_lot_size compute_dtype""",
    "Run": """
        chunk_size micro_batch_size stream_bytes placement check_contributions resume shard
        distributed
        coordinator coordinator_bind_address process_count process_id compile_cache config runtime
        quick minutes""",
    "Output": """
        out_dir claimed_by data_description purpose json plot verify traceback list""",
}
"""Group -> names of flags; a program shows those that it has."""

ASKED = ("--help", "-help", "-h", "--h", "-?")


def page(program: str, text: str | None) -> str:
    """Returns the help of a program: its text, and the flags of `GROUPS` that it has."""
    lines = [(text or "").strip(), ""]
    for group, names in GROUPS.items():
        known = [flags.FLAGS[name] for name in names.split() if name in flags.FLAGS]
        if known:
            lines += [f"{group}:", *_described(known), ""]
    return "\n".join([*lines, f"{program} --helpfull lists all flags."])


def _described(known: Iterable[flags.Flag]) -> list[str]:
    """Returns the help of each flag as lines: name, default, text and choices."""
    lines = []
    for flag in known:
        choices = getattr(flag.parser, "enum_values", None)
        default = flag.default
        if isinstance(default, list):
            default = ",".join(map(str, default))
        head = f"  --{'[no]' if flag.boolean else ''}{flag.name}"
        if not flag.boolean and default is not None:
            head += f"={default}"
        words = " ".join((flag.help or "").split())
        if choices and not all(one in words for one in choices):
            words += f" One of {', '.join(choices)}."
        if flag.boolean:
            words += f" Default: {'yes' if default else 'no'}."
        lines += [
            head,
            *textwrap.wrap(words, 92, initial_indent=" " * 6, subsequent_indent=" " * 6),
        ]
    return lines


def show_if_asked(arguments: Iterable[str]) -> None:
    """Prints the help and ends the process if the command line asks for it."""
    program, *rest = arguments
    if any(one in ASKED for one in rest):
        print(page(program, sys.modules["__main__"].__doc__))
        sys.exit(0)
