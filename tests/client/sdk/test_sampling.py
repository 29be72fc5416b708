from symphony import Sampling, TokenSet


def test_branches_draw_with_seeds_of_their_own() -> None:
    drawn = Sampling(temperature=0.8, seed=7)
    # As the Rust SDK's: the golden ratio's odd multiple.
    assert drawn.branch(1).seed == (7 + 2 * 0x9E37_79B9_7F4A_7C15) % (1 << 64)
    assert drawn.branch(1) != drawn.branch(2)
    assert Sampling(max_tokens=3).branch(1) == Sampling(max_tokens=3)


def test_options_have_only_what_is_no_default() -> None:
    assert Sampling().options([]) == {}
    assert Sampling(max_tokens=3).chunked(8).options([0]) == {
        "max": 3,
        "stop": [0],
        "ahead": 8,
        "lot": 8,
    }
    mask = TokenSet([1], 8)
    given = Sampling(allowed_tokens=mask, bias_mask=(mask, 2), repetition_penalty=(mask, 1.5))
    assert given.options([]) == {
        "bias_mask": {"mask": b"\x02", "value": 2.0},
        "repetition": {"mask": b"\x02", "penalty": 1.5},
        "allow": b"\x02",
    }


def test_exact_texts_end_nowhere_else() -> None:
    sampling = Sampling(stop=["a"], stop_token_ids=[3], exact=True)
    assert (sampling.stop_texts, sampling.stop_tokens((0,))) == ((), [])
    sampling = Sampling(stop="a", stop_token_ids=[3])
    assert (sampling.stop_texts, sampling.stop_tokens((0,))) == (("a",), [0, 3])
