"""The environment that docs/environments.md shows."""

import re
from pathlib import Path

from lit_group_rl.environments import Turn
from lit_group_rl.types import Prompt

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def test_the_example_of_the_page_works():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {"__name__": "my_parts"}
    exec(compile(code, str(PAGE), "exec"), names)

    def turn(said: str) -> Turn:
        return Turn(Prompt("guess", "50"), said, said, 0, False, 0)

    replies = names["Hints"](max_turns=3).reply([turn("20?"), turn("70?"), turn("50?"), turn("what?")])
    assert replies == [" more ", " less ", None, None]
