"""The settings of rotary embeddings: one for all layers, or one for each kind of layer."""

from symphony_kernel.executor.models.config.fields import Fields
from symphony_kernel.executor.models.config.parts import ROPE_THETA_DEFAULT, Rope
from symphony_kernel.executor.models.file_reader import shown

# Of each kind of scaling; the original context may be there with every kind, as Qwen's has it.
_KEYS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {
        "factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
        "truncate",
    },
    "longrope": {"factor", "attention_factor", "short_factor", "long_factor"},
}  # fmt: skip
_COMMON_KEYS = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings",
}  # fmt: skip
_ANY_KIND = tuple(kind for kind in _KEYS if kind != "longrope")


def plain_rope(fields: Fields, theta: float = ROPE_THETA_DEFAULT) -> tuple[Rope, int]:
    """Return the rotary embedding of all layers, and the context that it supports."""
    return _rope(fields, _given(fields), fields.number("rope_theta", theta), _ANY_KIND)


def yarn_rope(fields: Fields, theta: float, missing: dict[str, object]) -> tuple[Rope, int]:
    """Return the same with the settings of a model that names none."""
    scaling = _given(fields)
    if not scaling.values:
        scaling = Fields(missing, scaling.source)
    return _rope(fields, scaling, fields.number("rope_theta", theta), _ANY_KIND)


def partial_rope(fields: Fields, head_dim: int, context: int) -> tuple[Rope, int]:
    """Return Phi's: of a part of each head's dimensions, with factors for short contexts.

    `context` is the original one of a configuration that names none.
    """
    scaling = _given(fields)
    if scaling.values.get("type", scaling.values.get("rope_type")) in ("su", "yarn"):
        # What transformers reads as longrope in Phi's configurations.
        scaling.values["rope_type"] = scaling.values["type"] = "longrope"
    partial = scaling.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    pairs = int(head_dim * partial) // 2
    if partial > 1 or not pairs or int(head_dim * partial) % 2:
        raise fields.error(f"partial_rotary_factor {partial:g} of head_dim {head_dim}: no pairs")
    original = fields.integer("original_max_position_embeddings", context)
    return _rope(
        Fields(fields.values | {"original_max_position_embeddings": original}, fields.source),
        scaling, fields.number("rope_theta", ROPE_THETA_DEFAULT), ("default", "longrope"),
        partial, pairs,
    )  # fmt: skip


def local_and_global_rope(fields: Fields) -> tuple[Rope, Rope, int]:
    """Return Gemma 3's, for layers with a window and for the others, and the context."""
    given = fields.values.get("rope_parameters")
    nested = isinstance(given, dict) and bool({"full_attention", "sliding_attention"} & set(given))
    local_theta = fields.number("rope_local_base_freq", ROPE_THETA_DEFAULT)
    theta = fields.number("rope_theta", 1e6)
    if nested:
        kinds = fields.part("rope_parameters")
        unknown = set(kinds.values) - {"full_attention", "sliding_attention"}
        if unknown:
            raise kinds.error(f"unknown keys {shown(sorted(unknown))}")
        far, near = kinds.part("full_attention"), kinds.part("sliding_attention")
    else:
        far, near = _given(fields), Fields({}, fields.source)
    whole, context = _rope(fields, far, theta, _ANY_KIND)
    local, other = _rope(fields, near, local_theta, _ANY_KIND)
    return local, whole, min(context, other)


def _given(fields: Fields) -> Fields:
    given = fields.values.get("rope_parameters") or fields.values.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise fields.error("the rope parameters must be an object")
    return Fields({k: v for k, v in given.items() if v is not None}, f"{fields.source} (rope)")


def _rope(
    fields: Fields,
    scaling: Fields,
    theta: float,
    kinds: tuple[str, ...],
    partial: float = 1.0,
    pairs: int = 0,
) -> tuple[Rope, int]:
    context = fields.integer("max_position_embeddings")
    kind = str(scaling.values.get("rope_type") or scaling.values.get("type") or "default")
    _check_keys(scaling, kind, kinds, partial)
    # An original context outside the rope parameters, as in Phi, takes precedence.
    original = fields.integer(
        "original_max_position_embeddings",
        scaling.integer("original_max_position_embeddings", context),
    )
    theta = scaling.number("rope_theta", theta)
    if kind == "dynamic":
        return Rope(theta=theta), min(context, original)
    if kind == "longrope":
        rope = _longrope(scaling, theta, partial, pairs, original, context)
        return rope, min(context, original)
    return _scaled(scaling, kind, theta, partial, original, context), context


def _check_keys(scaling: Fields, kind: str, kinds: tuple[str, ...], partial: float) -> None:
    if kind not in kinds:
        known = ", ".join(kinds)
        raise scaling.error(f"type must be one of {known}, not {shown(kind)}")
    scaling.refuse("partial_rotary_factor", (partial,))
    unknown = set(scaling.values) - _KEYS[kind] - _COMMON_KEYS
    if unknown:
        raise scaling.error(f"unknown keys {shown(sorted(unknown))} with {kind}")


def _longrope(
    scaling: Fields, theta: float, partial: float, pairs: int, original: int, context: int
) -> Rope:
    scaling.numbers("long_factor", pairs)
    if original < 2:
        raise scaling.error(f"an original context of {original} has no logarithm to scale by")
    return Rope(
        kind="longrope",
        theta=theta,
        partial=partial,
        factor=scaling.number("factor", context / original),
        original_context=original,
        attention_factor=_attention_factor(scaling),
        short_factors=scaling.numbers("short_factor", pairs),
    )


def _scaled(
    scaling: Fields, kind: str, theta: float, partial: float, original: int, context: int
) -> Rope:
    if kind == "default":
        return Rope(theta=theta, partial=partial)
    needs_factor = kind != "yarn"
    factor = scaling.number("factor", None if needs_factor else context / original)
    rope = Rope(
        kind=kind,
        theta=theta,
        partial=partial,
        factor=factor,
        original_context=original,
        low_freq_factor=scaling.number("low_freq_factor", None if kind == "llama3" else 1.0),
        high_freq_factor=scaling.number("high_freq_factor", None if kind == "llama3" else 1.0),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", default=True),
        attention_factor=_attention_factor(scaling),
        mscale=scaling.number("mscale", 0.0),
        mscale_all_dim=scaling.number("mscale_all_dim", 0.0),
    )
    if kind == "yarn" and theta <= 1:
        raise scaling.error(f"rope_theta must exceed 1, not {theta:g}")
    if kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise scaling.error("high_freq_factor must exceed low_freq_factor")
    return rope


def _attention_factor(scaling: Fields) -> float | None:
    given = scaling.values.get("attention_factor")
    return None if given is None else scaling.number("attention_factor")
