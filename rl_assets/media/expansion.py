"""What an image's placeholder becomes, told from the image's size: no pixel is looked at."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Size = tuple[int, int]
"""Height and width in pixels."""

Expansion = Callable[[Sequence[Size]], list[str]]
"""What the placeholders of images of these sizes become, each."""

# Small, upright, flat, very flat and large ones: processors enlarge, shrink, crop or cut up by these.
_PROBES: tuple[Size, ...] = ((9, 13), (50, 30), (41, 333), (90, 1500), (700, 500), (1500, 1300))


def learn_expansion(processor: Any, settings: Mapping[str, Any]) -> Expansion | None:
    """How a processor expands the placeholder of an image, learnt from what it makes of blank images.

    Either as many image tokens as the class's own count for a size says (Qwen-VL, LLaVA), maybe between marks
    (Gemma 4), or the same text for every image (Gemma 3).

    Args:
        processor: a `ProcessorMixin` of transformers.
        settings: keyword arguments of its call.

    Returns:
        The expansion; None where a blank image is expanded in another way than either says, or the class
        has no count.
    """
    token = getattr(processor, "image_token", None)
    if token is None or not hasattr(processor, "_get_num_multimodal_tokens"):
        return None
    try:
        seen = [_expanded(processor, size, settings) for size in _PROBES]
        counts = processor._get_num_multimodal_tokens(image_sizes=list(_PROBES), **settings).num_image_tokens
    except Exception:  # a class of its own kind, or a size that it refuses: it is asked with every image
        return None
    before, _, after = seen[0].partition(token * counts[0])
    if seen == [before + token * count + after for count in counts]:

        def by_count(sizes: Sequence[Size]) -> list[str]:
            made = processor._get_num_multimodal_tokens(image_sizes=list(sizes), **settings)
            return [before + token * count + after for count in made.num_image_tokens]

        return by_count
    if len(set(seen)) == 1:
        return lambda sizes: [seen[0]] * len(sizes)
    return None


def expand(text: str, token: str, replacements: Sequence[str]) -> str:
    """`text` with its placeholders `token` replaced, in order; there are as many as replacements."""
    left = iter(replacements)
    return re.sub(re.escape(token), lambda _: next(left), text)


def _expanded(processor: Any, size: Size, settings: Mapping[str, Any]) -> str:
    from PIL import Image

    height, width = size
    made = processor(
        text=[processor.image_token],
        images=[Image.new("RGB", (width, height))],
        return_tensors="pt",
        return_text_replacement_offsets=True,
        **{"add_special_tokens": False, **settings},
    )
    return made["text_replacement_offsets"][0][0]["replacement"]
