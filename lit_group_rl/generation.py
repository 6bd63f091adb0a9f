"""Draw completions token by token with a key-value cache.

Every prompt is run through the model once and its cache is copied to the members of its group.  A row's randomness
comes from its key alone, so a completion does not depend on what else is in the batch.  A row that ends makes room at
once: the last live row takes its place, and waiting prompts fill the room behind.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_group_rl.drawn import Drawn, Law, Rows, StopTexts
from lit_group_rl.packing import embedding_weight
from lit_group_rl.pulse import PULSE

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    copies: int,
    keys: Sequence[int],
    max_new_tokens: int,
    temperature: float,
    eos_ids: Sequence[int],
    pad_id: int,
    top_p: float = 1.0,
    top_k: int = 0,
    logit_noise: float = 0.0,
    stops: StopTexts | None = None,
    max_rows: int = 512,
    on_end: OnEnd | None = None,
) -> Drawn:
    """``copies`` completions of every prompt, members of a group next to each other; temperature 0 is greedy.

    ``model`` is any causal language model of transformers; ``keys`` holds one integer per completion;
    at most ``max_rows`` rows (one group at least) are decoded at a time.  Greedy log-probs are taken at temperature 1.
    ``logit_noise`` adds that many deviations of Gaussian noise to the logits, one draw per row and token of the
    vocabulary, the same for the whole completion; the log-probs are those of the noisy distribution.
    A row ends at an end token, with its token that completes one of ``stops``, or at the limit.
    ``on_end`` is told of each row as soon as it is over: its place, its tokens, whether it was cut at the limit.
    A model whose cache is not one of keys and values goes through its own ``generate``, with the same result, but
    without a word to ``on_end``.
    """
    law = Law(temperature, top_p, top_k, logit_noise)
    weight = next(model.parameters())
    rows = Rows(len(prompts) * copies, keys, max_new_tokens, eos_ids, pad_id, law, weight.device, stops)
    was_training = model.training
    model.eval()
    try:
        if can_decode(model):
            step = vars(model)["_lit_group_rl_step"](model)
            _decode(model, step, prompts, copies, rows, max(1, max_rows // copies) * copies, on_end)
        else:
            from lit_group_rl.slow_generation import by_own_generate

            by_own_generate(model, prompts, copies, rows, max_rows)
    finally:
        model.train(was_training)
    exact = weight.dtype == torch.float32 and not torch.is_autocast_enabled(weight.device.type) and not law.greedy
    return rows.drawn(exact and top_p >= 1 and top_k == 0 and logit_noise == 0)


def _cache_argument(model: PreTrainedModel) -> str:
    """transformers renamed ``past_key_values`` to ``cache``."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[Any, Tensor]:
    """(cache of left-padded prompts, logits [P, V] of their last tokens)."""
    from transformers import DynamicCache

    device = next(model.parameters()).device
    width = max(len(p) for p in prompts)
    ids = torch.tensor([[pad_id] * (width - len(p)) + list(p) for p in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    # without a configuration a cache keeps what lies outside a window too; the mask sees to the window
    out = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
        **{_cache_argument(model): DynamicCache()},
    )
    return out[_cache_argument(model)], out.logits[:, -1]


class _Masks:
    """Additive masks [n, 1, 1, W] for one new token per row, in the form the model takes."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ())
        used = getattr(config, "use_sliding_window", True) or "sliding_attention" in kinds
        self.window = getattr(config, "sliding_window", None) if used else None
        self.by_kind = "sliding_attention" in kinds
        self.only_window = self.window is not None and not kinds
        self.dtype = embedding_weight(model).dtype

    def __call__(self, length: Tensor, longest: int) -> Any:
        """A row of ``length`` tokens sees these and its new one."""
        place = torch.arange(longest + 1, device=length.device)
        hidden = place > length[:, None]
        low = torch.finfo(self.dtype).min
        zero = torch.zeros(hidden.shape, dtype=self.dtype, device=length.device)
        full = zero.masked_fill(hidden, low)[:, None, None]
        if self.window is None or not (self.by_kind or self.only_window):
            return full
        windowed = zero.masked_fill(hidden | (place <= length[:, None] - self.window), low)[:, None, None]
        return {"full_attention": full, "sliding_attention": windowed} if self.by_kind else windowed


class _ModelStep:
    """Logits of one new token per row, by the model's own forward."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.cache_name = model, _cache_argument(model)

    def __call__(self, token: Tensor, length: Tensor, mask: Any, cache: Any) -> Tensor:
        """Tokens [n] behind rows of ``length`` [n] -> [n, V]."""
        out = self.model(
            input_ids=token[:, None],
            attention_mask=mask,
            position_ids=length[:, None],
            use_cache=True,
            **{self.cache_name: cache},
        )
        return out.logits[:, -1]


Step = Callable[[Tensor, Tensor, Any, Any], Tensor]
OnEnd = Callable[[int, list[int], bool], None]


def _decode(
    model: PreTrainedModel,
    step: Step,
    prompts: Sequence[Sequence[int]],
    copies: int,
    rows: Rows,
    slots: int,
    on_end: OnEnd | None = None,
) -> None:
    """Fill ``rows``, at most ``slots`` of them at a time (a multiple of ``copies``)."""
    from lit_group_rl.cache import STEP, RowCache

    device = rows.ids.device
    masks = _Masks(model)
    grow = min(STEP, rows.limit)  # what is made is filled with zeros, so not more than needed
    cache: RowCache | None = None
    waiting = 0  # the next prompt
    at = token = length = torch.empty(0, dtype=torch.long, device=device)  # of the live rows
    shift: Tensor | None = None
    while len(at) or waiting < len(prompts):
        PULSE.beat()
        room = (slots - len(at)) // copies
        if waiting < len(prompts) and (not len(at) or room * copies * 4 >= slots):
            some = prompts[waiting : waiting + max(1, room)]
            new = torch.arange(waiting * copies, (waiting + len(some)) * copies, device=device)
            before, logits = _prefill(model, some, rows.pad_id)
            longest = max(len(p) for p in some)
            need = max(int(length.max()) if len(length) else 0, longest) + grow
            total = min(slots, len(at) + (len(prompts) - waiting) * copies)
            if cache is None:
                cache = RowCache(before, total, need)
            elif cache.width < need or len(cache.layers[0].keys) < total:
                cache.resize(total, need, len(at))
            for i, prompt in enumerate(some):
                cache.fill(len(at) + i * copies, copies, before, i, len(prompt))
            waiting += len(some)
            more = rows.shift(new.tolist(), logits.shape[-1])
            logits = logits.repeat_interleave(copies, 0).float()
            chosen, over = rows.take(new, logits if more is None else logits + more)
            lengths = torch.tensor([len(p) for p in some], device=device).repeat_interleave(copies)
            at, token, length = torch.cat([at, new]), torch.cat([token, chosen]), torch.cat([length, lengths])
            over = torch.cat([over.new_zeros(len(at) - len(new)), over])
            if more is not None:
                shift = more if shift is None else torch.cat([shift, more])
            del before, logits
        else:
            assert cache is not None
            longest = int(length.max())
            if longest + 1 > cache.width:
                left = (len(prompts) - waiting) * copies
                cache.resize(min(slots, len(at) + left), longest + grow, len(at))
            cache.expect(length, longest)
            logits = step(token, length, masks(length, longest), cache)
            token, over = rows.take(at, logits if shift is None else logits.float() + shift)
            length = length + 1
        if over.any():
            if on_end is not None:
                for i in at[over].tolist():
                    on_end(*rows.finished(i))
            keep = _close_gaps(over)
            live = len(keep)
            moved = (keep != torch.arange(live, device=device)).nonzero().squeeze(1)
            if len(moved):
                cache.move(keep[moved], moved, int(length.max()))
            at, token, length = at[keep], token[keep], length[keep]
            shift = None if shift is None else shift[keep]


def _close_gaps(over: Tensor) -> Tensor:
    """For each place of the live rows the row that goes there: rows behind move into the gaps, the others stay."""
    live = (~over).nonzero().squeeze(1)
    order = torch.arange(len(live), device=over.device)
    gaps = over[: len(live)].nonzero().squeeze(1)
    order[gaps] = live[len(live) - len(gaps) :]
    return order


def can_decode(model: PreTrainedModel) -> bool:
    """Whether :func:`_decode` serves the model: known from its configuration, and tried once on two short prompts."""
    if not hasattr(model, "config"):
        return False
    known = vars(model)
    if "_lit_group_rl_step" not in known:
        known["_lit_group_rl_step"] = _find_step(model)
        if known["_lit_group_rl_step"] is None:
            warnings.warn(
                f"{type(model).__name__} keeps no plain key-value cache, so its completions are drawn by the slower "
                "generate of transformers; the result is the same",
                stacklevel=3,
            )
    return known["_lit_group_rl_step"] is not None


def _find_step(model: PreTrainedModel) -> type | None:
    from lit_group_rl.llama_step import LlamaStep

    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if getattr(model, "_is_stateful", False) or not kinds <= {"full_attention", "sliding_attention"}:
        return None
    if LlamaStep.fits(model) and _works(model, LlamaStep):
        return LlamaStep
    return _ModelStep if _works(model, _ModelStep) else None


def _works(model: PreTrainedModel, step: type) -> bool:
    prompts = [[0, 1, 2], [1]]
    device = next(model.parameters()).device
    rows = Rows(2, [0, 0], 3, (), 0, Law(0.0), device)
    loose = 1e-4 if next(model.parameters()).dtype == torch.float32 else 0.2
    try:
        _decode(model, step(model), prompts, 1, rows, 2)
        for i, prompt in enumerate(prompts):
            ids = torch.tensor([prompt], device=device)
            ids = torch.cat([ids, rows.ids[i : i + 1, :-1]], 1)
            plain = model(input_ids=ids, use_cache=False).logits[0, -3:].float().log_softmax(-1)
            found = plain.gather(1, rows.ids[i][:, None]).squeeze(1)
            if not torch.allclose(found, rows.logp[i], atol=loose):
                return False
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError):
        return False
    return True
