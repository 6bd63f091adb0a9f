import io
import sys

import pytest

from lit_group_rl.callbacks.console import CLEAR, Console, cell, safe


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("77", "77"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),  # would colour everything after it
        ("\x9b2J", "\\x9b2J"),  # the one-byte escape code: clears the screen
        ("ab\u202edc", "ab\\u202edc"),  # shows the rest right to left
        ("\ud800", "\\ud800"),  # half of a pair: no encoding can write it
        ("日本 שלום 👩\u200d🚀", "日本 שלום 👩\u200d🚀"),
    ],
)
def test_text_cannot_steer_the_terminal(raw, shown):
    assert safe(raw) == shown
    safe(raw).encode("utf-8")


def test_long_text_is_cut_and_says_by_how_much():
    assert safe("x" * 10, limit=10) == "x" * 10
    assert safe("x" * 15, limit=10) == "x" * 10 + "… (+5)"


def test_a_cell_stays_one_cell_and_shows_its_text():
    import html

    raw = "1|2 *a* <b> `c` [d](e) ~~f~~ # g"
    assert not set(cell(raw)) & set("|*<`[~")
    assert html.unescape(cell(raw)) == raw
    assert cell("") == "∅"


def test_a_line_replaces_the_live_line(monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    console = Console()
    console.live("step 1")
    console.line("held-out")
    console.line("next")
    assert out.getvalue() == f"{CLEAR}step 1{CLEAR}held-out\nnext\n"


def test_a_live_line_never_wraps(monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", "20")
    Console().live("x" * 50)
    assert out.getvalue() == CLEAR + "x" * 18 + "…"


def test_nothing_live_without_a_terminal(capsys):
    Console().live("step 1")
    assert capsys.readouterr().out == ""


def test_an_old_encoding_gets_question_marks_instead_of_an_error(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    Console().line("→ 77 ✓")
    assert raw.getvalue() == b"? 77 ?\n"


def test_a_closed_pipe_does_not_end_the_run(monkeypatch):
    class Gone(io.StringIO):
        encoding = "utf-8"

        def flush(self):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    console = Console()
    console.line("one")
    console.line("two")
    sys.stdout.close()
