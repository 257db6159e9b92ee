"""Write the table of model families and its page in both languages: `python tools/family_table.py`.

Every causal language-model family that the installed transformers knows is built tiny and tried. The tests compare the
files with what is so; run this after an upgrade of transformers or a change of what is trained.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForTokenClassification, PreTrainedModel  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES  # noqa: E402

from tests.families import FAMILIES, NOT_BUILT, tiny_config, tiny_model  # noqa: E402
from trinity.common.errors import EnvironmentProblem  # noqa: E402
from trinity.common.models.families import REFUSED, TABLE  # noqa: E402
from trinity.trainer.verl.decoder import is_common  # noqa: E402
from trinity.trainer.verl.layout import choose_layout  # noqa: E402
from trinity.trainer.verl.loading import value_head  # noqa: E402


def entries(family: str) -> dict[str, dict[str, str]]:
    """Return what the table says of one family, also under the name that its text model has."""
    if family in NOT_BUILT:
        return {family: {"trainer": REFUSED, "critic": REFUSED, "reason": NOT_BUILT[family]}}
    model = tiny_model(tiny_config(family))
    trainer, reason = way(model, has_logits=True)
    critic = value_model(family)
    made = {"trainer": trainer, "critic": REFUSED if critic is None else way(critic, has_logits=False)[0]}
    made |= {"reason": reason} if trainer == REFUSED else {}
    return dict.fromkeys((str(model.config.model_type), family), made)


def value_model(family: str) -> PreTrainedModel | None:
    """Return the family's model with one number a token; None where transformers has none."""
    if family not in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES:
        return None
    config = tiny_config(family)
    config.num_labels = 1
    model: Any = AutoModelForTokenClassification.from_config(config, attn_implementation="eager")
    try:
        value_head(model)
    except EnvironmentProblem:
        return None
    return model.eval()


def way(model: PreTrainedModel, *, has_logits: bool) -> tuple[str, str]:
    """Return how a model is trained, and why not if it is refused."""
    if is_common(model):
        return "own", ""
    try:
        return choose_layout(model, has_logits=has_logits, may_pack=True).kind, ""
    except EnvironmentProblem as problem:
        return REFUSED, REASONS[next(words for words in REASONS if words in str(problem))]


REASONS = {
    "is not causal": "what they compute at a token depends on later tokens",
    "are not those of one linear map": "their logits are not those of one linear map with a scale and a bound",
    "does not compute a list of text tokens": "they do not compute a list of text tokens by themselves",
    "computes a row otherwise": "rows that stand beside each other change each other",
}


def table() -> dict[str, Any]:
    """Return the whole table."""
    transformers.utils.logging.set_verbosity_error()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = [entries(name) for name in FAMILIES]
        known = {name: entry for each in found for name, entry in each.items() if name not in FAMILIES}
        known |= {name: each[name] for name, each in zip(FAMILIES, found, strict=True)}
        return {"transformers": transformers.__version__, "families": known}


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
