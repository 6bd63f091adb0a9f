"""``export``: a run's policy as a plain Hugging Face folder with a model card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lit_group_rl.cli.arguments import RUN_HELP, Arguments, find_run
from lit_group_rl.cli.refusal import Refusal, shown


def export(argv: Sequence[str]) -> int:
    """``export RUN DIR [--adapter] [--checkpoint best|last]``."""
    parser = Arguments("export", "Write the policy of a run as a Hugging Face folder: weights, tokenizer, model card.")
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("dir", metavar="DIR", type=Path, help="a new folder")
    parser.add_argument("--adapter", action="store_true", help="of a LoRA run only the adapter; default: merged in")
    parser.add_argument(
        "--checkpoint",
        choices=("best", "last"),
        default="best",
        help="best: of the evaluated steps the one with the best held-out accuracy (default)",
    )
    args = parser.parse_args(argv)
    run, out = find_run("export", args.run), args.dir
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refusal("export", f"{shown(out)} exists and is not empty", "Give a new folder.")
    from lit_group_rl.cli import model_card
    from lit_group_rl.cli.loading import load, refusing

    cli, checkpoint = load("export", run, args.checkpoint)
    with refusing():
        if args.adapter:
            cli.model.policy.save_adapter(out)
        else:
            cli.model.policy.save(out)
    model_card.write(run, out, step=int(checkpoint.state["rl_step"]), which=args.checkpoint, adapter=args.adapter)
    kind = "a LoRA adapter" if args.adapter else "a whole model"
    print(f"wrote {shown(out)}: {kind}, after RL step {checkpoint.state['rl_step']} of {shown(run)}")
    print(f"      {shown(out / model_card.FILE)} holds the whole configuration, paths too: read it before you publish")
    return 0
