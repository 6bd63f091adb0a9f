"""The real console script: what needs no torch answers at once."""

import resource
import subprocess
import sys

import pytest


def run(*argv):
    command = [sys.executable, "-m", "lit_group_rl", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def busy_seconds():
    """Processor time of all finished children: unlike the clock it does not count other work on the machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    "argv",
    [
        (), ("--help",), ("--version",), ("ls",), ("ls", "advantage"), ("cat", "grpo"), ("diff", "grpo", "grpo"),
        ("fit", "--help"), ("fit", "gprpo"), ("fit", "grpo", "--model.advantage=GAEE"),
    ],
)  # fmt: skip
def test_light_commands_answer_within_a_second(argv):
    used = []
    for _ in range(2):  # the better of two: other work on the machine makes cold caches, and so more processor time
        before = busy_seconds()
        run(*argv)
        used.append(busy_seconds() - before)
    assert min(used) < 1.0


def test_light_commands_import_nothing_heavy():
    code = (
        "import sys; from lit_group_rl.cli.main import main\n"
        "for line in ('', 'ls', 'ls advantage', 'cat grpo', 'diff grpo grpo', 'fit --help'): main(line.split())\n"
        "print('HEAVY', sorted({'torch', 'lightning', 'transformers', 'numpy', 'jsonargparse'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_exit_code_and_stderr_of_a_refusal():
    done = run("fit", "gprpo")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: recipe: 'gprpo'")
