import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lit_group_rl.rewards import CodeExecution
from lit_group_rl.rewards.base import ScorerTimeout
from lit_group_rl.rewards.code_execution import extract_code
from lit_group_rl.types import RecipeError, Sample

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")

LOCAL = {"backend": "unsafe_local", "i_accept_the_risk": True}
ADD = [
    {"input": "3 4", "output": "7"},
    {"input": "10 -2\n", "output": "8\n"},
]


@pytest.fixture(params=["unsafe_local", "namespace"])
def make(request):
    def build(**options):
        try:
            return CodeExecution(request.param, i_accept_the_risk=True, **({"seconds": 20.0} | options))
        except RecipeError as error:
            pytest.skip(str(error))

    return build


def sample(completion, tests=ADD, column="tests"):
    return Sample("p", completion, None, {column: tests}, 3, False)


def processes(marker):
    listed = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if marker in line and not line.startswith("Z")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["backend", "must be chosen", "namespace", "unsafe_local"]),
        ({"backend": "unsafe_local"}, ["delete your files", "i_accept_the_risk: true"]),
    ],
)
def test_it_is_off_until_a_backend_is_chosen(options, words):
    with pytest.raises(RecipeError) as error:
        CodeExecution(**options)
    for word in ["CodeExecution.backend", *words]:
        assert word in str(error.value)


def test_a_machine_without_namespaces_is_refused_with_the_reason(tmp_path, monkeypatch):
    for tool, line in (
        ("setpriv", 'shift 2; exec "$@"'),
        ("unshare", "echo unshare failed: not permitted >&2; exit 1"),
    ):
        (tmp_path / tool).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(RecipeError, match=r"does not allow namespace: unshare failed: not permitted.*unsafe_local"):
        CodeExecution("namespace")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(RecipeError, match=r"setpriv and unshare not found"):
        CodeExecution("namespace")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print(1)", "print(1)"),
        ("so\n```python\nprint(1)\n```\nor\n```\nprint(2)\n```\ndone", "print(2)\n"),
        ("```py\nprint(1)\n", "```py\nprint(1)\n"),
    ],
)
def test_the_last_fenced_block_is_the_program(text, code):
    assert extract_code(text) == code


def test_share_of_passed_tests(make):
    right = "a, b = map(int, input().split())\nprint(a + b)"
    half = "a, b = map(int, input().split())\nprint(abs(a) + abs(b))"  # 7 and 12
    completions = [right, f"Here:\n```python\n{right}\n```", half, "print(", "", "import sys; sys.exit(0)"]
    failing = right + "\nraise SystemExit(1)"
    given = [sample(c) for c in [*completions, failing]] + [sample(right, []), sample(right, None)]
    assert make().score(given) == [1, 1, 0.5, 0, 0, 0, 0, None, None]


def test_calls_are_judged_by_the_last_line(make):
    tests = [{"call": "add([3], [4])", "output": "[3, 4]"}, {"call": "add('a', 'b')", "output": "'ab'"}]
    chatty = "def add(a, b):\n    return a + b\nprint('loaded')"
    assert make().score([sample(chatty, tests), sample("add = max", tests)]) == [1, 0]


def test_the_expected_output_is_not_in_the_process(make):
    # a program that looks for it everywhere it can: arguments, environment, its folder
    secret = "a-word-nobody-guesses"
    code = (
        "import os, sys\nfound = ' '.join(sys.argv) + repr(dict(os.environ))\n"
        "for f in os.listdir('.'): found += open(f).read()\n"
        "print('-'.join(['a', 'word', 'nobody', 'guesses']) if 'a' + '-word' in found else 'none')"
    )
    assert make().score([sample(code, [{"output": secret}])]) == [0]
    assert make().score([sample(code, [{"output": "none"}])]) == [1]


def test_secrets_of_the_environment_are_not_handed_on(make, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    code = "import os\nprint(os.environ.get('WANDB_API_KEY'))"
    assert make().score([sample(code, [{"output": "None"}])]) == [1]


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\ntime.sleep(60)",
        "while True: print('x' * 1000)",
    ],
)
def test_what_does_not_end_is_ended(make, code):
    reward, before = make(seconds=1.0), set(os.listdir(tempfile.gettempdir()))
    start = time.monotonic()
    # its second test is not tried any more; the program beside it is scored
    assert reward.score([sample(code), sample("print(7)")]) == [0, 0.5]
    assert time.monotonic() - start < 6
    left = set(os.listdir(tempfile.gettempdir())) - before
    assert not [name for name in left if name.startswith("program-")]


@pytest.mark.parametrize(
    "code",
    [
        "block = bytearray(2 * 2**30)",
        "x = 9 ** 9 ** 9 ** 9",
        "open('big', 'wb').write(b'x' * 5 * 2**20)",
        "import sys; sys.stdout.write('x' * 5 * 2**20)",
        "import os; os._exit(3)",
    ],
)
def test_memory_files_and_crashes_fail_the_program_alone(make, code):
    reward = make(memory_mb=256, file_mb=4, seconds=2.0)
    start = time.monotonic()
    done = [{"output": "done"}]
    assert reward.score([sample(f"{code}\nprint('done')", done), sample("print('done')", done)]) == [0, 1]
    assert time.monotonic() - start < 8


def test_processes_that_a_program_starts_end_with_it(make):
    # 2^4 processes where the system lets them be: as root the limit of processes does not hold
    marker = f"{61}.{os.getpid()}"
    code = (
        "import os, time\n"
        "try:\n    for _ in range(4): os.fork()\nexcept OSError: pass\n"
        f"os.execv('/bin/sleep', ['sleep', '{marker}'])"
    )
    assert make(seconds=2.0).score([sample(code)]) == [0]
    time.sleep(0.3)
    assert processes(f"sleep {marker}") == []


def test_the_batch_has_a_limit_too():
    reward = CodeExecution(**LOCAL, seconds=20.0, batch_seconds=1.0, workers=1)
    start = time.monotonic()
    first, second = reward.score([sample("while True: pass"), sample("print(7)")])
    assert time.monotonic() - start < 4
    assert isinstance(first, ScorerTimeout)
    assert isinstance(second, ScorerTimeout)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ["needs the column 'tests'", "no such columns"]),
        ({"tests": ["assert add(3, 4) == 7"]}, ["entry 0 of the column 'tests'", "assert add"]),
        ({"tests": [{"input": "3"}]}, ["entry 0", '"output": "7"']),
        ({"tests": [{"output": 7}]}, ["entry 0"]),
    ],
)
def test_data_without_proper_tests_are_refused(fields, words):
    with pytest.raises(RecipeError) as error:
        CodeExecution(**LOCAL).score([Sample("p", "print(7)", None, fields, 3, False)])
    for word in words:
        assert word in str(error.value)


def test_a_column_of_another_name():
    assert CodeExecution(**LOCAL, tests="cases").score([sample("print(7)", ADD[:1], "cases")]) == [1]


@pytest.fixture
def isolated():
    try:
        return CodeExecution("namespace", seconds=20.0)
    except RecipeError as error:
        pytest.skip(str(error))


def printed(reward, code, output):
    return reward.score([sample(code, [{"output": output}])])[0] == 1


def test_a_namespace_writes_nowhere_else(isolated, tmp_path):
    for place in (
        tmp_path / "x",
        Path(__file__).parent / "written-by-a-program",
        Path("/dev/shm/x"),
        Path.home() / "x",
    ):
        code = f"try:\n    open({str(place)!r}, 'w')\n    print('wrote')\nexcept OSError as e: print('refused')"
        assert printed(isolated, code, "refused")
        assert not place.exists()
    assert printed(isolated, "open('x', 'w').write('3')\nprint(open('x').read())", "3")


def test_a_namespace_has_no_network_no_processes_and_no_rights(isolated):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            "import socket\ntry:\n"
            f"    socket.create_connection(('127.0.0.1', {port}), 2)\n    print('connected')\n"
            "except OSError as e: print('refused')"
        )
        assert printed(isolated, code, "refused")
        assert CodeExecution(**LOCAL).score([sample(code, [{"output": "connected"}])]) == [1]
    assert printed(isolated, "import os\nprint(os.listdir('/proc'), os.getpid())", "[] 1")
    remount = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "print(libc.mount(b'none', b'/', None, 32 | 4096, None), libc.sethostname(b'x', 1))"
    )
    assert printed(isolated, remount, "-1 -1")
