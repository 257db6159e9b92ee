"""The two versions of a payload: which one is written, and what is read."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trinity.common.experience import EID, Experience
from trinity.common.payload import ANY_JSON, STRICT_JSON, decode, encode

BEFORE_VERSION_2 = (
    "R8mD)0RVmi00000003$M004U;aB^>LaCBd6Wo~D5Xd*f?EFyAccVTj5B04cHH7p`@a&>NFVRU6*b97;Jb#o#*Zgp&IEFx)cW^W=odm?RbWMyn$"
    "c4cyNX>V>KIx;LGY+-U|Wg<E;F*q<aIWaaeFgGzbG%+zVFf%kVG%O-+Z**vBZf7DoPGL?gB6MYVbRs$;Ty<nPFfd$oHDWb4B7H0(ZDn+FX=8ID"
    "I(s5*B04ZGF?}o|aB^>LaCBdEWq5QVIwD+kHDWb4A}k_uWpi+EZgXW{bY*ySB06q$Y-}tdZDn(FVP|D?B06q$Y-}tdbZ>8Lb0Ru!b!==bB4cQ8"
    "b7gK{ZDn(FVP|D?B06q$Y-}tda%E~|V{~O?Uu|V`b75y?b0Ru!b!==bB4uf0B05_$EFxTWFfe5~FEJu4GAuAGB6A{LEFxodb98TQUuJ1#Y-DpH"
    "I$K>VB4}ZAUu|`4bZK90Z)9O?B06SaY;$FOzyJUM00000dm?miYh`Y8B075_WOR9OWg<EvNj5YhEFyDgVQ^(4I$JbdEFxrKbYWj_W@d9`baNs)"
    "TQDp$GF^QvB5ZGGaB^>Ab0Ru>B4l)VaAhJoB1SVZA}k_vXkl<=B05_#T`VGGVRT_%Z)Rq5Wpr~QI$JX`EHp4(eJmnjV{~b6ZeML-b88|xdm?0X"
    "d2nSSIwC?(PfQ{#B6DbAaAhJoTQXfNB4lB7VP9`%W^-k9b0RuhG%zeQGF^RrARr(h1poj5000001^@s6000002LJ#7000002mk;8000000002L"
    "004l#0Rdbewc$v<5$&R<cxxWIhv)"
)
"""`encode` of the program that knew one version, of the experience of `test_a_payload_of_before_is_read`."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def version(data: bytes) -> int:
    number: int = struct.unpack_from("<H", data, 4)[0]
    return number


def exact(value: Any) -> str:
    """Return a text that tells apart 1, 1.0 and True, 0.0 and -0.0."""
    return repr(value)


@given(header=st.dictionaries(st.text(), JSON, max_size=5))
def test_every_header_comes_back(header: dict[str, Any]) -> None:
    data = encode(header, {"x": torch.arange(3)})
    found, tensors = decode(data)
    # Python's own JSON is the oracle: it writes and reads every number and text as it is.
    assert exact(found) == exact(json.loads(json.dumps(header)))
    assert tensors["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"text": "日本\0語", "list": [1, -0.0, 5e-324, None, True], "deep": {"a": [{"b": 2}]}}, STRICT_JSON),
        ({"smallest": -(2**63), "largest": 2**64 - 1}, STRICT_JSON),
        ({"larger": 2**64}, ANY_JSON),
        ({"smaller": -(2**63) - 1}, ANY_JSON),
        ({"deep": [{"nothing": math.nan}]}, ANY_JSON),
        ({"infinite": -math.inf}, ANY_JSON),
        ({"half": "\ud800"}, ANY_JSON),
        ({"\udfff": 1}, ANY_JSON),
        ({"tuple": (1, 2)}, ANY_JSON),
    ],
)
def test_what_strict_json_cannot_say_is_written_as_any_json(value: dict[str, Any], expected: int) -> None:
    data = encode(value, {"x": torch.zeros(2)})
    assert version(data) == expected
    assert exact(decode(data)[0]) == exact(json.loads(json.dumps(value)))


def test_a_tensor_may_have_any_name() -> None:
    for name in ("pixels", "数", 'quote"d', "back\\slash", "\ud800"):
        data = encode({}, {name: torch.arange(2)})
        assert decode(data)[1][name].tolist() == [0, 1]
        assert version(data) == (STRICT_JSON if name.isascii() else ANY_JSON)


def test_a_payload_of_before_is_read() -> None:
    """Version 1 with NaN, an integer of 71 bits and half a character."""
    data = base64.b85decode(BEFORE_VERSION_2)
    assert version(data) == ANY_JSON
    found = Experience.deserialize(data)
    assert found.eid == EID(3, "é/1", 2, 0, "s")
    assert found.tokens.tolist() == [5, 6, 7, 8] and found.prompt_length == 2
    assert found.logprobs is not None and found.logprobs.tolist() == [-0.5, -0.25]
    assert found.info["large"] == 2**70 and math.isnan(found.info["nothing"]) and found.info["text"] == "\ud800字"
    assert (found.reward, found.metrics, found.prompt_text) == (1.5, {"m": 0.1}, "字")
    assert found.serialize() == data
