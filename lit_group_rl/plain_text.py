"""Text of a model or a data set as it may be shown: on one line, without what could steer a terminal."""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"


def safe(text: str, limit: int | None = None) -> str:
    """``text`` on one line with everything escaped that could steer a terminal or hide.

    Control characters, terminal escape codes, direction overrides and lone surrogates appear as backslash escapes;
    emoji, CJK and right-to-left letters stay.  Longer than ``limit`` characters: cut, with the number left out.
    """
    rest = 0 if limit is None else len(text) - limit
    kept = text if rest <= 0 else text[:limit]
    out = "".join(c if _harmless(c) else c.encode("unicode_escape", "surrogatepass").decode() for c in kept)
    return out if rest <= 0 else f"{out}… (+{rest})"


def plain_prompt(prompt: str | list[dict[str, str]]) -> str:
    """A prompt as one text; of a chat 'role: content' per message."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{m.get('role', '')}: {m.get('content', '')}" for m in prompt)


def _harmless(char: str) -> bool:
    if char in JOINERS:
        return True
    return unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}
