"""The warning about white nodes that the opset of the model refuses (ML411, Rule S4.11)."""

from __future__ import annotations

import mixlist
from tests.support.builders import model, policy

TEXT = """<ir_version: 10, opset_import: ["" : 17]> g (float[1,3,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] z)
<float[4,3,1,1] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { y = Conv(x, w) b = Conv(x, w) z = Exp(b) }"""


def warnings_of(text: str, **options: object) -> list[tuple[str, str | None]]:
    warnings = mixlist.resolve(model(text), policy(white=["Conv", "Exp"], **options)).warnings
    return [(warning.message, warning.hint) for warning in warnings if warning.code == "ML411"]


def test_the_warning_counts_the_white_nodes_and_names_the_opset() -> None:
    expected = "opset 17 allows no bfloat16 for Conv, so 2 white nodes stay float32"
    hint = "write it at a later opset: mixlist apply or convert with --opset 22"
    assert warnings_of(TEXT, mode="mixed_bfloat16") == [(expected, hint)]


def test_nothing_is_said_where_the_opset_allows_the_type_or_no_list_wants_it() -> None:
    assert warnings_of(TEXT) == []  # float16
    assert warnings_of(TEXT.replace("17", "22"), mode="mixed_bfloat16") == []
    assert warnings_of(TEXT, mode="origin") == []
