"""Networks of many kinds export, and agree with torch.autograd in float64 on batches of two sizes."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("onnxscript", reason="needs onnxscript")

import torch

from mixlist.errors import ModelError
from mixlist.training import export_step
from tests.support.training_cases import Case
from tests.support.training_steps import assert_agrees, open_step
from tests.training.zoo import NETWORKS, QUICK, REFUSED

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's exporter warns of its own deprecations
CAMPAIGN = os.environ.get("MIXLIST_CAMPAIGN") == "1"  # ``make campaign``: all networks


def test_the_zoo_has_62_networks_of_which_few_are_refused() -> None:
    names = [case.name for case in NETWORKS]
    assert len(set(names)) == len(names) == 62
    assert {*QUICK, *REFUSED} <= set(names)
    assert len(names) - len(REFUSED) >= 54


@pytest.mark.parametrize(
    "case",
    [case for case in NETWORKS if CAMPAIGN or case.name in QUICK or case.name in REFUSED],
    ids=lambda case: case.name,
)
def test_a_network_agrees_with_torch_or_is_refused(case: Case) -> None:
    torch.manual_seed(0)
    module = case.make()
    if case.name in REFUSED:
        with pytest.raises(ModelError, match=REFUSED[case.name]) as caught:
            export_step(module, case.loss, case.rows(3))
        assert "Traceback" not in str(caught.value)
        return
    step = open_step(export_step(module, case.loss, case.rows(3)), module)
    for rows in (3, 7):
        assert_agrees(step, case.loss, case.rows(rows))


def test_an_error_of_torch_names_the_line_of_the_user() -> None:
    with pytest.raises(ModelError, match=r"torch cannot trace the step: .*reduction dim.*test_zoo.py:") as caught:
        export_step(torch.nn.Linear(5, 2), lambda module, x: module(x).sum(), {"x": torch.ones(3, 4)})
    assert len(str(caught.value).splitlines()) == 2  # the sentence and the hint
