"""One side of the comparison on one workload; prints one JSON line.

python -m benchmarks.side ours|trl W1 --cycles 4 [--flops]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, replace

from benchmarks.workloads import WORKLOADS, Workload


def main(argv: list[str] | None = None) -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("side", choices=("ours", "trl"))
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="change the workload")
    parser.add_argument("--cycles", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--flops", action="store_true", help="count operations (slows the run; its times mean nothing)")
    args = parser.parse_args(argv)
    changes = dict(item.split("=", 1) for item in args.set)
    kinds = {k: type(v) for k, v in asdict(Workload()).items()}
    w = replace(WORKLOADS[args.workload], **{k: kinds[k](v) for k, v in changes.items()})
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    real, sys.stdout = sys.stdout, sys.stderr  # whatever a trainer prints stays off the result stream
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    if args.side == "ours":
        from benchmarks.ours import run
    else:
        from benchmarks.trl_side import run
    result = run(w, args.cycles, args.warmup, args.flops)
    head = {"side": args.side, "workload": args.workload, "settings": asdict(w), "threads": args.threads}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    sys.stdout = real
    print(json.dumps(head | versions | result))


if __name__ == "__main__":
    main()
